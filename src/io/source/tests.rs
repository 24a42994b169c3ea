#![expect(clippy::disallowed_methods, reason = "what others do to a directory meanwhile")]

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType};

use super::*;

/// A root with a file in it and in a directory below, beside a directory with a secret.
fn tree() -> (tempfile::TempDir, RootDir) {
    let home = tempfile::tempdir().unwrap();
    let at = |path: &str| home.path().join(path);
    fs::create_dir_all(at("root/d")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("root/a.csv"), "inside").unwrap();
    fs::write(at("root/d/a.csv"), "inside").unwrap();
    fs::write(at("outside/a.csv"), "secret").unwrap();
    let root = RootDir::open(&at("root")).unwrap();
    (home, root)
}

fn content(file: &SourceFile) -> String {
    let mut buf = [0; 16];
    let len = file.read_full_at(&mut buf, 0).unwrap();
    String::from_utf8(buf[..len].to_vec()).unwrap()
}

#[test]
fn a_file_below_a_root_is_read_by_its_path_from_there() {
    let (_home, root) = tree();
    for path in ["a.csv", "d/a.csv", "./d/./a.csv", "d/../a.csv"] {
        let file = root.open_below(Path::new(path)).unwrap();
        assert_eq!((content(&file).as_str(), file.path()), ("inside", Path::new(path)));
    }
}

#[test]
fn no_path_leads_out_of_a_root() {
    let (home, root) = tree();
    let outside = home.path().join("outside");
    symlink(&outside, home.path().join("root/up")).unwrap();
    symlink("../outside/a.csv", home.path().join("root/link.csv")).unwrap();
    symlink("a.csv", home.path().join("root/own.csv")).unwrap();
    symlink("/proc/self/root", home.path().join("root/slash")).unwrap();
    let told = |path: &Path| root.open_below(path).unwrap_err();
    for path in ["..", "../outside/a.csv", "d/../../outside/a.csv", "/etc/passwd", "/"] {
        assert!(matches!(told(Path::new(path)), NoSource::Outside), "{path}");
    }
    assert!(matches!(told(&outside.join("a.csv")), NoSource::Outside));
    for path in ["up/a.csv", "link.csv", "own.csv", "slash/etc/passwd", "up"] {
        assert!(matches!(told(Path::new(path)), NoSource::Link), "{path}");
    }
}

#[test]
fn what_is_no_file_below_a_root_is_refused_at_once() {
    let (home, root) = tree();
    let at = |path: &str| home.path().join("root").join(path);
    rustix::fs::mknodat(CWD, at("pipe.csv"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.csv")).unwrap();
    let told = |path: &str| root.open_below(Path::new(path)).unwrap_err();
    assert!(matches!(told("pipe.csv"), NoSource::Special));
    assert!(matches!(told("socket.csv"), NoSource::Special));
    assert!(matches!(told("d"), NoSource::Directory));
    assert!(matches!(told("."), NoSource::Directory));
    assert!(matches!(told("none.csv"), NoSource::Io(e) if e.kind() == io::ErrorKind::NotFound));
    assert!(
        matches!(told("a.csv/b.csv"), NoSource::Io(e) if e.kind() == io::ErrorKind::NotADirectory)
    );
    assert!(matches!(told("a\0.csv"), NoSource::Io(e) if e.kind() == io::ErrorKind::InvalidInput));
    let null = rustix::fs::makedev(1, 3);
    match rustix::fs::mknodat(CWD, at("null.csv"), FileType::CharacterDevice, Mode::RUSR, null) {
        // A directory of a file system without devices answers that itself.
        Ok(()) => assert!(matches!(told("null.csv"), NoSource::Special | NoSource::Io(_))),
        Err(e) => println!("SKIP a device below a root: {e}"),
    }
}

/// A check of a path followed by an open of it reads the secret within a few rounds.
#[test]
fn a_path_that_changes_while_it_is_opened_never_leads_out() {
    const OPENS: usize = 20_000;
    let (home, root) = tree();
    let at = |path: &str| home.path().join(path);
    fs::rename(at("root/d"), at("root/real")).unwrap();
    symlink("../outside", at("root/link")).unwrap();
    let done = AtomicBool::new(false);
    let (mut read, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in ["real", "link"] {
                    fs::rename(at("root").join(name), at("root/d")).unwrap();
                    fs::rename(at("root/d"), at("root").join(name)).unwrap();
                }
            }
        });
        // At least so many, and until both names were met.
        for round in 0..OPENS * 50 {
            match root.open_below(Path::new("d/a.csv")) {
                Ok(file) => {
                    assert_eq!(content(&file), "inside");
                    read += 1;
                }
                Err(NoSource::Link) => refused += 1,
                Err(NoSource::Io(e)) => assert_eq!(e.kind(), io::ErrorKind::NotFound),
                Err(e) => panic!("{e:?}"),
            }
            if round >= OPENS && read > 0 && refused > 0 {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn the_handle_that_was_checked_is_the_one_that_is_read() {
    let (home, root) = tree();
    let file = root.open_below(Path::new("d/a.csv")).unwrap();
    fs::rename(home.path().join("root/d"), home.path().join("gone")).unwrap();
    symlink("../outside", home.path().join("root/d")).unwrap();
    assert_eq!(content(&file), "inside");
    // The root is its handle, not its name.
    fs::rename(home.path().join("root"), home.path().join("moved")).unwrap();
    symlink("outside", home.path().join("root")).unwrap();
    assert_eq!(content(&root.open_below(Path::new("a.csv")).unwrap()), "inside");
}

/// What cannot be told: docs/import.md says so.
#[test]
fn a_hard_link_is_the_file() {
    let (home, root) = tree();
    let outside = home.path().join("outside/a.csv");
    match fs::hard_link(outside, home.path().join("root/hard.csv")) {
        Ok(()) => {
            let file = root.open_below(Path::new("hard.csv")).unwrap();
            assert_eq!(content(&file), "secret");
        }
        Err(e) => println!("SKIP a hard link below a root: {e}"),
    }
}

#[test]
fn a_root_is_a_directory() {
    let (home, _) = tree();
    let told = |path: &str| RootDir::open(&home.path().join(path)).unwrap_err().kind();
    assert_eq!(told("root/a.csv"), io::ErrorKind::NotADirectory);
    assert_eq!(told("none"), io::ErrorKind::NotFound);
}
