//! Images of file systems in memory, mounted from loop devices, in a mount namespace of their own:
//! whatever ends the process, nothing stays mounted and no device stays attached.

use std::ffi::CString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::geteuid;

use super::child;

/// How a power cut treats the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// Everything is written first.
    AfterSync = 0,
    /// The journal is written first.
    AfterJournal = 1,
    /// Nothing more reaches the disk.
    AtOnce = 2,
}

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) fs: &'static str,
    mkfs: &'static [&'static str],
    image_bytes: u64,
    /// Options it may be mounted with.
    pub(crate) options: &'static [&'static str],
}

/// ext4 with blocks of a page.
pub(crate) const EXT4: Kind = Kind {
    name: "ext4",
    fs: "ext4",
    mkfs: &[
        "mkfs.ext4",
        "-q",
        "-F",
        "-b",
        "4096",
        "-J",
        "size=4",
        "-E",
        "nodiscard,lazy_itable_init=0",
    ],
    image_bytes: 64 << 20,
    options: &["data=ordered", "data=writeback", "data=journal", "nodelalloc"],
};

/// ext4 with several blocks in a page.
pub(crate) const EXT4_SMALL: Kind = Kind {
    name: "ext4 with blocks of 1 KiB",
    fs: "ext4",
    mkfs: &[
        "mkfs.ext4",
        "-q",
        "-F",
        "-b",
        "1024",
        "-J",
        "size=4",
        "-E",
        "nodiscard,lazy_itable_init=0",
    ],
    ..EXT4
};

/// XFS, as small as its tools make it.
pub(crate) const XFS: Kind = Kind {
    name: "xfs",
    fs: "xfs",
    mkfs: &["mkfs.xfs", "-q", "-f"],
    image_bytes: 300 << 20,
    options: &[""],
};

/// Why no file system of this kind can be mounted here.
pub(crate) fn missing(kind: Kind) -> Option<String> {
    if !geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("needs loop devices".to_owned());
    }
    let tools = [kind.mkfs[0], "mount", "unshare"];
    let tool = tools.into_iter().find(|tool| !child::has(tool))?;
    Some(format!("{tool} is missing"))
}

/// Runs the test `name` again in the part `part`, as root of a mount namespace of its own, with a
/// directory that it may mount on.
pub(crate) fn on_stage(name: &str, part: &str) {
    let dir = tempfile::tempdir().unwrap();
    let by = ["unshare", "--mount", "--propagation", "private", "--"];
    let mut command = child::wrapped(&by, name, part);
    let status = command.env(STAGE, dir.path()).status().unwrap();
    assert!(status.success(), "{name}, {part}: {status}");
}

const STAGE: &str = "ONCELOG_MACHINE_STAGE";

/// A directory in memory for images and mounts.
pub(crate) struct Stage {
    dir: PathBuf,
}

impl Stage {
    /// The directory that [`on_stage`] has made, of `bytes` at most.
    pub(crate) fn new(bytes: u64) -> Self {
        let dir = PathBuf::from(std::env::var_os(STAGE).expect("started by on_stage"));
        let size = CString::new(format!("size={bytes}")).unwrap();
        mount("tmpfs", &dir, "tmpfs", MountFlags::empty(), &*size).unwrap();
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A mounted image.
pub(crate) struct Disk {
    kind: Kind,
    image: PathBuf,
    mount_point: PathBuf,
    device: PathBuf,
    /// Keeps the device while nothing is mounted; it detaches itself with its last user.
    open_device: File,
    mounted: bool,
}

impl Disk {
    /// Makes the one image of a stage and mounts it.
    pub(crate) fn make(stage: &Stage, kind: Kind) -> Self {
        let image = stage.dir.join("image");
        File::create(&image).unwrap().set_len(kind.image_bytes).unwrap();
        // mke2fs(8) zeroes its journal by holes otherwise, for which a full disk has no room.
        let mut mkfs = Command::new(kind.mkfs[0]);
        run(mkfs.args(&kind.mkfs[1..]).arg(&image).env("UNIX_IO_NOZEROOUT", "1"));
        let mount_point = stage.dir.join("mounted");
        fs::create_dir_all(&mount_point).unwrap();
        let mut by_loop = Command::new("mount");
        run(by_loop.args(["-t", kind.fs, "-o", "loop"]).arg(&image).arg(&mount_point));
        let device = device_of(&mount_point);
        let open_device = File::open(&device).unwrap();
        Self { kind, image, mount_point, device, open_device, mounted: true }
    }

    /// The root of the mounted file system.
    pub(crate) fn root(&self) -> &Path {
        &self.mount_point
    }

    /// Cuts the power of the file system.
    pub(crate) fn cut(&self, cut: Cut) {
        shutdown(&File::open(&self.mount_point).unwrap(), cut);
    }

    /// Has the device take one page at a time. A loop device answers a write of which its file took
    /// a part as if it had taken all: a device that lies, of which nothing can be asked. One page is
    /// taken or refused.
    pub(crate) fn by_page(&self) -> PageByPage {
        let name = self.device.file_name().unwrap();
        let path = Path::new("/sys/block").join(name).join("queue/max_sectors_kb");
        let before = fs::read_to_string(&path).unwrap();
        fs::write(&path, "4").unwrap();
        PageByPage { path, before }
    }

    /// Unmounts, which drops what is in the cache.
    pub(crate) fn unmount(&mut self) {
        unmount(&self.mount_point, UnmountFlags::empty()).unwrap();
        self.mounted = false;
        // A device that stays open keeps pages with changes that no journal took.
        drop_buffers(&self.open_device);
    }

    /// Mounts again; the file system recovers.
    pub(crate) fn mount(&mut self, options: &str) {
        let options = CString::new(options).unwrap();
        let none = MountFlags::empty();
        mount(&self.device, &self.mount_point, self.kind.fs, none, &*options).unwrap();
        self.mounted = true;
    }
}

/// Gives the device its own limit again when dropped: it outlives the image.
pub(crate) struct PageByPage {
    path: PathBuf,
    before: String,
}

impl Drop for PageByPage {
    fn drop(&mut self) {
        fs::write(&self.path, self.before.trim()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also while a test fails; then something may hold a file, and the namespace ends with
        // the process.
        if self.mounted && unmount(&self.mount_point, UnmountFlags::DETACH).is_err() {
            println!("{} stays mounted in its namespace", self.mount_point.display());
        }
        fs::remove_file(&self.image).unwrap();
    }
}

/// The device that is mounted on a directory.
fn device_of(mount_point: &Path) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // proc(5): the mount point is the fifth field, the source the second behind " - ".
    let found = mounts
        .lines()
        .rfind(|line| line.split(' ').nth(4).is_some_and(|field| Path::new(field) == mount_point));
    let behind = found.unwrap().split_once(" - ").unwrap().1;
    PathBuf::from(behind.split(' ').nth(1).unwrap())
}

/// Runs a command that has to succeed.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {complaint}", output.status);
}

/// Cuts the power of a file system: XFS_IOC_GOINGDOWN, which ext4 has as EXT4_IOC_SHUTDOWN. Nothing
/// is read or written behind it until the file system was unmounted and mounted again.
#[expect(unsafe_code, reason = "no safe call cuts the power of a file system")]
fn shutdown(root: &File, cut: Cut) {
    /// `_IOR('X', 125, __u32)`.
    const GOING_DOWN: rustix::ioctl::Opcode = 0x8004_587d;
    // SAFETY: the call reads one u32 behind its argument, which is what a setter passes, and any
    // value is either one of its three flags or refused.
    let setter = unsafe { rustix::ioctl::Setter::<GOING_DOWN, u32>::new(cut as u32) };
    // SAFETY: as above; it touches no memory of this process but that argument.
    unsafe { rustix::ioctl::ioctl(root, setter) }.unwrap();
}

/// Drops the cache of a device, as its last close does: BLKFLSBUF.
#[expect(unsafe_code, reason = "no safe call drops the cache of a device")]
fn drop_buffers(device: &File) {
    /// `_IO(0x12, 97)`.
    const FLUSH: rustix::ioctl::Opcode = 0x1261;
    // SAFETY: the call takes no argument.
    let flush = unsafe { rustix::ioctl::NoArg::<FLUSH>::new() };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(device, flush) }.unwrap();
}
