//! `everycore seccomp`: the profile that lets a container use io_uring, so that an image needs nothing beside itself.

use super::args::{SeccompArgs, exit};
use std::{fs, io, path::Path, process::ExitCode};

const DOCKER: &str = include_str!("../../docker/seccomp.json");
/// For containerd, CRI-O and Kubernetes.
const OCI: &str = include_str!("../../docker/seccomp-oci.json");

pub(super) fn run(args: &SeccompArgs) -> ExitCode {
    let profile = if args.oci { OCI } else { DOCKER };
    let Some(path) = &args.output else {
        print!("{profile}");
        return ExitCode::from(exit::OK);
    };
    match replace(path, profile) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            eprintln!("everycore: cannot write {}: {error}", path.display());
            ExitCode::from(exit::RUNTIME)
        }
    }
}

/// In one step, since a kubelet may be reading it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let next = path.with_added_extension("new");
    fs::write(&next, text)?;
    fs::rename(&next, path)
}
