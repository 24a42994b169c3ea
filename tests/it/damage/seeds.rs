//! The golden logs and the corpus of damage as seeds for fuzzing: `fuzz/corpus/open_directory`.

#[path = "../../../fuzz/src/directory.rs"]
#[allow(dead_code, reason = "the targets use the rest")]
mod directory;

use std::fs;
use std::path::Path;

use super::{images, makes_files, seal};
use crate::image::Directory;

/// Longer ones slow an engine down.
const SEED_LEN_MAX: usize = 4096;

/// The segments of a directory.
fn segments(directory: &Directory) -> Vec<&(String, Vec<u8>)> {
    let mut found: Vec<_> = directory
        .files
        .iter()
        .filter(|(name, _)| name.len() == 35 && name.ends_with(".seg"))
        .collect();
    found.sort();
    found
}

#[test]
fn the_logs_of_the_tests_are_seeds_for_fuzzing() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/open_directory");
    let mut count = 0;
    for kind in ["golden", "corpus"] {
        for (name, image) in images(kind) {
            let seed = directory::encode(&image.directory);
            if seed.len() > SEED_LEN_MAX {
                continue;
            }
            let path = seeds.join(format!("{kind}-{name}"));
            if makes_files() {
                fs::create_dir_all(&seeds).unwrap();
                fs::write(&path, &seed).unwrap();
            }
            assert!(fs::read(&path).unwrap_or_default() == seed, "{} is another", path.display());
            let again = directory::decode(&seed);
            assert!(segments(&again) == segments(&image.directory), "{name} comes back otherwise");
            assert!(again.lock == image.directory.lock, "{name} comes back otherwise");
            count += 1;
        }
    }
    assert!(count > 150, "{count} seeds");
}
