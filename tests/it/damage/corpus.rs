//! The corpus of damage: logs with what must be said of each, made from the golden logs.
//!
//! A case names its golden log, the verdict that a person expects, and the steps that damage it.
//! The files are committed, so that another reader of these bytes can use them; this makes them
//! again and compares. `ONCELOG_MAKE_DATA` in the environment writes them.
//!
//! ```text
//! flip F AT BIT              zero F AT LEN             cut F LEN             grow F LEN
//! set F STRUCTURE FIELD N    as break F .. N, with checksums that hold, as seal F STRUCTURE
//! remove F    copy F NAME    rename F NAME    swap F G    put NAME HEX     take F AT LEN LOG G AT
//! ```
//!
//! `F` is the place of a segment in the order of names, from 0, or a name. `AT` and `LEN` are
//! numbers, or `frameN`, `footer`, `end`, each with `+N` or `-N` behind it.

use std::fmt::Write as _;
use std::fs;

use super::seal::{Structure, footer, frames, put};
use super::{data, images, judged, makes_files};
use crate::differential;
use crate::image::{Directory, Image};

/// Name, golden log, expected verdict, steps.
type Case = [&'static str; 4];

/// The cases, one a line.
fn cases() -> Vec<Case> {
    let lines = include_str!("cases.txt").lines().filter(|line| !line.starts_with('#'));
    let cells = lines.map(|line| line.splitn(4, '|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| cells.try_into().expect("four cells")).collect()
}

type Outcome<T> = Result<T, String>;

/// A directory that is being damaged.
struct Bench {
    directory: Directory,
    golden: Vec<(String, Image)>,
}

impl Bench {
    fn run(&mut self, words: &[&str]) -> Outcome<()> {
        match words {
            ["flip", name, at, bit] => {
                let (at, bit) = (self.at(name, at)?, number(bit)?);
                *self.file(name)?.get_mut(at).ok_or("behind the end")? ^= 1 << bit;
            }
            ["zero", file, at, len] => {
                let (from, len) = (self.at(file, at)?, number(len)?);
                self.file(file)?.get_mut(from..from + len).ok_or("behind the end")?.fill(0);
            }
            ["cut", file, len] => {
                let len = self.at(file, len)?;
                self.file(file)?.truncate(len);
            }
            ["grow", file, len] => {
                let len = self.at(file, len)?;
                self.file(file)?.resize(len, 0);
            }
            [verb @ ("set" | "break"), file, structure, field, value] => {
                let structure = self.structure(file, structure)?;
                let field = structure.fields().iter().find(|(name, ..)| name == field);
                let &(_, offset, width) = field.ok_or("no such field")?;
                let value: u64 = value.parse().map_err(|e| format!("{value}: {e}"))?;
                let file = self.file(file)?;
                put(file, structure.at() + offset, &value.to_le_bytes()[..width]);
                if *verb == "set" {
                    structure.seal(file);
                }
            }
            ["seal", file, structure] => {
                let structure = self.structure(file, structure)?;
                structure.seal(self.file(file)?);
            }
            ["remove", file] => {
                let name = self.name(file)?;
                if name == "LOCK" {
                    self.directory.lock = None;
                }
                self.directory.files.retain(|(known, _)| *known != name);
            }
            ["copy", file, name] => {
                let bytes = self.file(file)?.clone();
                self.directory.files.push(((*name).to_owned(), bytes));
            }
            ["rename", file, name] => {
                let old = self.name(file)?;
                let named = self.directory.files.iter_mut().find(|(known, _)| *known == old);
                (*name).clone_into(&mut named.ok_or("no such file")?.0);
            }
            ["swap", a, b] => {
                let (a_bytes, b_bytes) = (self.file(a)?.clone(), self.file(b)?.clone());
                *self.file(a)? = b_bytes;
                *self.file(b)? = a_bytes;
            }
            ["put", name, hex] => {
                let bytes = (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..][..2], 16));
                let bytes = bytes.collect::<Result<Vec<u8>, _>>().map_err(|e| e.to_string())?;
                self.directory.files.push(((*name).to_owned(), bytes));
            }
            ["take", file, at, len, golden, other, from] => {
                let (at, len) = (self.at(file, at)?, number(len)?);
                let mut theirs = Self { directory: self.golden(golden)?, golden: Vec::new() };
                let from = theirs.at(other, from)?;
                let bytes = theirs.file(other)?.get(from..from + len).ok_or("behind the end")?;
                put(self.file(file)?, at, bytes);
            }
            _ => return Err("no such step".to_owned()),
        }
        Ok(())
    }

    fn golden(&self, name: &str) -> Outcome<Directory> {
        let found = self.golden.iter().find(|(known, _)| known == name);
        Ok(found.ok_or_else(|| format!("no golden log {name}"))?.1.directory.clone())
    }

    fn name(&self, file: &str) -> Outcome<String> {
        let segments = || self.directory.files.iter().filter(|(name, _)| name.ends_with(".seg"));
        let index =
            if file == "tail" { segments().count().checked_sub(1) } else { file.parse().ok() };
        match index {
            Some(index) => {
                let mut names: Vec<&String> = segments().map(|(name, _)| name).collect();
                names.sort();
                Ok((*names.get(index).ok_or("no such segment")?).clone())
            }
            None => Ok(file.to_owned()),
        }
    }

    fn file(&mut self, file: &str) -> Outcome<&mut Vec<u8>> {
        let name = self.name(file)?;
        if name == "LOCK" {
            return self.directory.lock.as_mut().ok_or_else(|| "no LOCK".to_owned());
        }
        let named = self.directory.files.iter_mut().find(|(known, _)| *known == name);
        Ok(&mut named.ok_or_else(|| format!("no file {name}"))?.1)
    }

    fn at(&mut self, file: &str, at: &str) -> Outcome<usize> {
        let sign = at.find(['+', '-']).unwrap_or(at.len());
        let (base, more) = at.split_at(sign);
        let base = match base {
            "end" => self.file(file)?.len(),
            "footer" => self.structure(file, base)?.at(),
            frame if frame.starts_with("frame") => self.structure(file, base)?.at(),
            digits => number(digits)?,
        };
        match more.split_at_checked(1) {
            Some(("+", digits)) => Ok(base + number(digits)?),
            Some((_, digits)) => Ok(base - number(digits)?),
            None => Ok(base),
        }
    }

    fn structure(&mut self, file: &str, word: &str) -> Outcome<Structure> {
        let bytes = self.file(file)?;
        Ok(match word {
            "lock" => Structure::Lock,
            "header" => Structure::Header,
            "copy0" => Structure::Copy(0),
            "copy1" => Structure::Copy(1),
            "slot0" => Structure::Slot(0),
            "slot1" => Structure::Slot(1),
            "footer" => footer(bytes).ok_or("no footer")?,
            frame => {
                let index = number(frame.strip_prefix("frame").ok_or("no such structure")?)?;
                Structure::Frame(*frames(bytes).get(index).ok_or("no such frame")?)
            }
        })
    }
}

fn number(digits: &str) -> Outcome<usize> {
    digits.parse().map_err(|e| format!("{digits}: {e}"))
}

/// The damaged log of a case, and where it is not what is expected.
fn made(
    [name, base, expected, steps]: Case,
    golden: &[(String, Image)],
) -> (Image, Option<String>) {
    let mut bench = Bench {
        directory: Directory { files: Vec::new(), lock: None, story: String::new() },
        golden: golden.to_vec(),
    };
    bench.directory = bench.golden(base).unwrap_or_else(|e| panic!("{name}: {e}"));
    for step in steps.split(';').filter(|step| !step.trim().is_empty()) {
        let words: Vec<&str> = step.split_whitespace().collect();
        if let Err(e) = bench.run(&words) {
            let wrong = format!("{name}: {step}: {e}\n");
            return (Image { directory: bench.directory, verdict: Vec::new() }, Some(wrong));
        }
    }
    let mut directory = bench.directory;
    directory.files.sort();
    directory.story = format!("{base}; {}", steps.split_whitespace().collect::<Vec<_>>().join(" "));
    let verdict = judged(&directory);
    let word = verdict[0].split(' ').nth(1);
    let wrong = (word != Some(expected))
        .then(|| format!("{name}: {expected} was expected, there is {}\n", verdict.join("; ")));
    (Image { directory, verdict }, wrong)
}

#[test]
fn the_corpus_is_what_its_cases_make() {
    let golden = images("golden");
    if makes_files() {
        // Nothing stays that no case makes.
        if data("corpus").exists() {
            fs::remove_dir_all(data("corpus")).unwrap();
        }
        fs::create_dir_all(data("corpus")).unwrap();
    }
    let mut names = Vec::new();
    let mut wrong = String::new();
    for case in cases() {
        let [name, ..] = case;
        let (image, unexpected) = made(case, &golden);
        wrong.extend(unexpected);
        let path = data("corpus").join(format!("{name}.txt"));
        if makes_files() {
            fs::write(&path, image.print()).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        if committed != image.print() {
            writeln!(wrong, "{name} is not what its case makes").unwrap();
        }
        names.push(name.to_owned());
    }
    assert!(wrong.is_empty(), "{wrong}");
    names.sort();
    let committed: Vec<String> = images("corpus").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, committed);
    println!("{} cases", names.len());
}

#[test]
fn every_log_of_the_corpus_has_the_verdict_that_it_must_have() {
    if makes_files() {
        return; // while they are made
    }
    for (name, image) in images("corpus") {
        // Whoever opens, reads, and writes agrees with the reference, which made the verdict.
        differential::check(&image.directory, &name);
    }
}
