//! `doctor`, and what `serve` says, where things are really denied: a seccomp filter, limits, cores, `/proc`, privileges.

mod common;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
    thread,
};

const BINARY: &str = env!("CARGO_BIN_EXE_everycore");
/// Asks for the cures of a plain host, whatever the tests run in.
const DOCTOR: [&str; 4] = ["doctor", "--json", "--for", "host"];
const RING_CALLS: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Runs a command whose process gets `errno` from every io_uring call: a filter binds the thread that installs it and
/// what it starts.
fn denied(errno: libc::c_int, mut command: Command) -> Output {
    let rules = RING_CALLS.into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().expect("seccomp knows this processor");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).expect("the filter is in order");
    let run = move || {
        apply_filter(&program).expect("anybody may bind himself");
        command.stdin(Stdio::null()).output().expect("the built binary starts")
    };
    thread::spawn(run).join().expect("the command ran")
}

fn everycore(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    command
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program is there")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The JSON report in an output, and no word of a panic beside it.
#[track_caller]
fn report(output: &Output) -> Value {
    let said = stderr(output);
    assert!(!said.contains("panicked") && !said.contains("too old"), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// State, finding and cure of one check.
#[track_caller]
fn check(report: &Value, name: &str) -> (String, String, String) {
    let checks = report["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"));
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("found"), text("cure"))
}

/// Why this host cannot run the tests that need a ring, root or a tool.
fn skip(why: &str) {
    println!("skipped: {why}");
}

static IS_SERVING: LazyLock<bool> = LazyLock::new(|| run(BINARY, &DOCTOR).status.code() == Some(0));

fn is_root() -> bool {
    run("id", &["-u"]).stdout.starts_with(b"0\n")
}

/// A copy of the binary that every user may run.
fn shared_binary(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let mode =
        |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let copy = folder.join("everycore");
    std::fs::copy(BINARY, &copy).expect("the built binary can be copied");
    mode(folder);
    mode(&copy);
    copy
}

/// The report of a process without privileges, under what the shell was told before. Locked memory is counted by
/// user, so that no two tests are the same one.
fn unprivileged(user: u32, before: &str, arguments: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = shared_binary(folder.path());
    let line = format!("{before} exec {} {arguments}", binary.display());
    run("setpriv", &[&format!("--reuid={user}"), "--regid=65534", "--clear-groups", "sh", "-c", &line])
}

// ---- a filter ------------------------------------------------------------------------------------

#[test]
fn doctor_under_a_filter_names_it_and_the_cure_of_each_platform() {
    for (errno, reason) in [(libc::EPERM, "a seccomp profile forbids it (EPERM)"), (libc::ENOSYS, "(ENOSYS)")] {
        for (platform, cure) in [
            ("docker", "--security-opt seccomp=docker/seccomp.json"),
            ("podman", "podman run --security-opt seccomp=docker/seccomp.json"),
            ("kubernetes", "localhostProfile: everycore.json"),
            ("systemd", "SystemCallFilter=@system-service io_uring_setup io_uring_enter io_uring_register"),
            ("host", "seccomp filter of whoever started this"),
        ] {
            let output = denied(errno, everycore(&["doctor", "--json", "--for", platform]));
            assert_eq!(output.status.code(), Some(69), "{output:?}");
            let (state, found, told) = check(&report(&output), "io_uring");
            assert_eq!(state, "broken");
            assert!(found.contains(reason) && told.contains(cure), "{platform}: {found}; {told}");
        }
    }
}

#[test]
fn serve_under_a_filter_ends_with_69_and_says_why() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let output = denied(errno, everycore(&["serve", "--listen", "127.0.0.1:0"]));
        assert_eq!((output.status.code(), &*output.stdout), (Some(69), &b""[..]));
        let said = stderr(&output);
        assert!(said.starts_with("everycore: io_uring is not available: a seccomp profile "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn doctor_of_one_denied_call_does_not_panic() {
    let arch = std::env::consts::ARCH.try_into().expect("seccomp knows this processor");
    for call in [libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_sched_getaffinity] {
        let rules = [(call, Vec::new())].into_iter().collect();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch);
        let program: BpfProgram = filter.and_then(TryInto::try_into).expect("the filter is in order");
        let output = thread::spawn(move || {
            apply_filter(&program).expect("anybody may bind himself");
            everycore(&DOCTOR).output().expect("the built binary starts")
        });
        let output = output.join().expect("the command ran");
        assert_eq!(output.status.code(), Some(69), "call {call}: {output:?}");
        assert_eq!(report(&output)["state"], "broken");
    }
}

// ---- limits --------------------------------------------------------------------------------------

#[test]
fn locked_memory_below_glommios_least_is_broken_for_root_too() {
    let output = run("sh", &["-c", &format!("ulimit -l 511; exec {BINARY} {}", DOCTOR.join(" "))]);
    if !*IS_SERVING {
        return skip("io_uring is not available");
    }
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let (_, found, cure) = check(&report(&output), "io_uring");
    assert!(found.contains("this user may lock 511 KiB in all") && cure.contains("ulimit -l"), "{found}; {cure}");
}

#[test]
fn locked_memory_of_512_kib_carries_one_shard_and_tells_what_more_need() {
    if !*IS_SERVING || !is_root() {
        return skip("it takes a ring, and root to become another user");
    }
    let doctor =
        |shards: &str| unprivileged(61_001, "ulimit -l 512;", &format!("{} --shards {shards}", DOCTOR.join(" ")));
    let one = doctor("1");
    assert_eq!(one.status.code(), Some(0), "{one:?}");
    let two = doctor("2");
    let (state, _, cure) = check(&report(&two), "memlock");
    match check(&report(&two), "trial").0.as_str() {
        // A kernel that charges rings.
        "broken" => {
            assert_eq!((two.status.code(), &*state, cure.contains("ulimit -l 944")), (Some(69), "warning", true))
        }
        _ => assert_eq!((two.status.code(), &*state), (Some(0), "ok")),
    }
}

#[test]
fn few_open_files_are_a_warning_which_strict_takes_for_a_failure() {
    if !*IS_SERVING {
        return skip("io_uring is not available");
    }
    let line = |more: &str| format!("ulimit -n 1024; exec {BINARY} {} {more}", DOCTOR.join(" "));
    let output = run("sh", &["-c", &line("")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (state, found, cure) = check(&report(&output), "nofile");
    assert_eq!(state, "warning");
    assert!(found.starts_with("1024: enough for ") && cure.contains("ulimit -n"), "{found}; {cure}");
    assert_eq!(run("sh", &["-c", &line("--strict")]).status.code(), Some(1));
}

// ---- cores, /proc, privileges --------------------------------------------------------------------

#[test]
fn cores_are_those_of_the_affinity_mask() {
    let mask = run("sh", &["-c", "taskset -cp $$"]);
    let cores = String::from_utf8_lossy(&mask.stdout).trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let first = cores.split(['-', ',']).next().unwrap_or_default();
    let arguments = [&["-c", first, BINARY], &DOCTOR[..]].concat();
    let report = report(&run("taskset", &arguments));
    assert_eq!(report["shards"], 1);
    assert!(check(&report, "cores").1.starts_with(&format!("1 shard on core {first} ")), "{report}");
}

#[test]
fn doctor_without_proc_tells_what_it_can() {
    let hide = format!("mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec {BINARY} {}", DOCTOR.join(" "));
    if !run("unshare", &["--mount", "true"]).status.success() {
        return skip("it takes root to hide /proc");
    }
    let output = run("unshare", &["--mount", "sh", "-c", &hide]);
    let report = report(&output);
    assert_eq!(report["kernel"], "of unknown release");
    assert_eq!(check(&report, "somaxconn"), ("ok".into(), "not shown here".into(), String::new()));
    assert_eq!(output.status.code(), Some(if *IS_SERVING { 0 } else { 69 }), "{output:?}");
}

#[test]
fn doctor_with_proc_read_only_and_no_privileges_serves() {
    if !*IS_SERVING || !is_root() {
        return skip("it takes a ring, and root to remount /proc");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let binary = shared_binary(folder.path());
    let line = format!(
        "mount -o remount,bind,ro /proc && exec setpriv --reuid=61002 --regid=65534 --clear-groups --no-new-privs \
         --bounding-set=-all {} {}",
        binary.display(),
        DOCTOR.join(" ")
    );
    let output = run("unshare", &["--mount", "sh", "-c", &line]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(check(&report(&output), "trial").0, "ok");
}

#[test]
fn text_tells_each_thing_in_a_line_and_how_to_start() {
    let output = run(BINARY, &["doctor", "--for", "docker", "--shards", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("ok       ")), "{text}");
    assert!(
        text.contains("\nto start it: docker run --security-opt seccomp=docker/seccomp.json --ulimit memlock="),
        "{text}"
    );
}
