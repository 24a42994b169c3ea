//! One owner: a close has released the directory when it returns, and of processes that race to
//! open a log one wins.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use oncelog::{CreateMode, ErrorKind, Log, Options};

use super::child;
use super::figures::figure;

/// Closes of one run.
const CLOSES: u32 = 10_000;
/// Processes that race, and how often.
const RACERS: usize = 3;
const ROUNDS: usize = 300;
/// What a racer's lines begin with: the harness of the tests prints, too.
const ANSWER: &str = "racer ";

fn options() -> Options {
    Options::new().segment_bytes_max(65_536).create(CreateMode::IfMissing)
}

#[test]
fn a_log_opens_at_once_after_each_of_ten_thousand_closes() {
    let home = child::home();
    let dir = home.path().join("log");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A process that is just being started has a copy of every open file of this one.
        let starter = scope.spawn(|| {
            let mut started = 0;
            while !over.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
                started += 1;
            }
            started
        });
        for k in 0..CLOSES {
            let (log, _) = Log::open(&dir, &options())
                .unwrap_or_else(|e| panic!("open behind close {k}: {e}"));
            if k % 16 == 0 {
                log.append(&k.to_le_bytes()).unwrap();
            }
            log.close().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        figure(15, "processes started beside the closes", starter.join().unwrap());
    });
    figure(15, "closes, each followed by an open at once", CLOSES);
}

/// A process that opens and closes when it is told to.
struct Racer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Racer {
    fn start(name: &str) -> Self {
        let mut command = child::again(name, "racer");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut lines = self.output.by_ref().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with(ANSWER)).unwrap();
        line[ANSWER.len()..].to_owned()
    }
}

/// The racer's side.
fn race() {
    let mut open = None;
    for line in io::stdin().lines() {
        let answer = match line.unwrap().split_once(' ') {
            Some(("open", dir)) => match Log::open(dir, &options()) {
                Ok((log, _)) => {
                    log.append(b"mine").unwrap();
                    open = Some(log);
                    "won".to_owned()
                }
                Err(e) if e.kind() == ErrorKind::Busy => "busy".to_owned(),
                Err(e) => format!("failed: {e}"),
            },
            _ => {
                drop(open.take());
                "closed".to_owned()
            }
        };
        println!("{ANSWER}{answer}");
    }
}

#[test]
fn of_processes_that_race_to_open_a_log_one_wins() {
    if child::part().is_some() {
        return race();
    }
    let home = child::home();
    let name = "owner::of_processes_that_race_to_open_a_log_one_wins";
    let mut racers: Vec<Racer> = (0..RACERS).map(|_| Racer::start(name)).collect();
    let mut wins = [0; RACERS];
    for round in 0..ROUNDS {
        // Every third round makes the log, too.
        let dir: PathBuf = home.path().join((round / 3).to_string());
        racers.iter_mut().for_each(|racer| racer.tell(&format!("open {}", dir.display())));
        let answers: Vec<String> = racers.iter_mut().map(Racer::answer).collect();
        let won: Vec<usize> = (0..RACERS).filter(|k| answers[*k] == "won").collect();
        let busy = answers.iter().filter(|answer| *answer == "busy").count();
        assert!(won.len() == 1 && busy == RACERS - 1, "round {round}: {answers:?}");
        wins[won[0]] += 1;
        racers.iter_mut().for_each(|racer| racer.tell("close"));
        racers.iter_mut().for_each(|racer| assert_eq!(racer.answer(), "closed"));
        let (log, _) = Log::open(&dir, &options()).unwrap();
        let appended = usize::try_from(log.next_lsn().get() - 1).unwrap();
        assert_eq!(appended, round % 3 + 1, "each winner has appended once");
        log.close().unwrap();
    }
    for mut racer in racers {
        drop(racer.input);
        assert!(racer.child.wait().unwrap().success());
    }
    figure(15, "races to open that one process won", format!("{ROUNDS}, by racer {wins:?}"));
}
