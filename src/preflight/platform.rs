//! Who runs the process, and so who can change what it is allowed.
//!
//! Floor 3. Tells by files and environment, and knows the words in which each platform is told to allow more.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

/// Our seccomp profiles, Docker's form and the plain one, as they lie in the repository; `everycore seccomp` prints them.
const PROFILE: &str = "docker/seccomp.json";
const PROFILE_OCI: &str = "docker/seccomp-oci.json";

/// What runs around the process, as far as it decides who can allow io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// gVisor's own kernel.
    Gvisor,
    /// AWS Fargate.
    Fargate,
    /// A pod.
    Kubernetes,
    /// Podman.
    Podman,
    /// Docker in the machine of Docker Desktop.
    DockerDesktop,
    /// Docker Engine.
    Docker,
    /// A container of another make.
    Container,
    /// A systemd service.
    Systemd,
    /// Nothing that we know of.
    Host,
}

impl Platform {
    pub(super) fn detect(root: &Path, env: impl Fn(&str) -> Option<String>, kernel: &str) -> Self {
        let exists = |path: &str| root.join(path).exists();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        // gVisor shows every program this one version, release and date of build.
        if read("proc/version").contains("Sun Jan 10 15:06:54 PST 2016") {
            Self::Gvisor
        } else if env("AWS_EXECUTION_ENV").is_some_and(|name| name == "AWS_ECS_FARGATE") {
            Self::Fargate
        } else if env("KUBERNETES_SERVICE_HOST").is_some() {
            Self::Kubernetes
        } else if exists("run/.containerenv") {
            Self::Podman
        } else if exists(".dockerenv") {
            if kernel.contains("linuxkit") { Self::DockerDesktop } else { Self::Docker }
        } else if env("container").is_some() {
            Self::Container
        } else if env("INVOCATION_ID").is_some() && read("proc/self/cgroup").trim_end().ends_with(".service") {
            Self::Systemd
        } else {
            Self::Host
        }
    }

    /// How to let a process make the three io_uring calls.
    pub(super) fn seccomp_cure(self) -> String {
        match self {
            Self::Docker => {
                format!(
                    "start the container with `--security-opt seccomp={PROFILE}` (`everycore seccomp` prints that file)"
                )
            }
            Self::Podman => format!(
                "start the container with `podman run --security-opt seccomp={PROFILE}` (`everycore seccomp` prints that \
                 file)"
            ),
            Self::DockerDesktop => "Docker Desktop 4.42 and later block io_uring whatever the profile says; \
                                    use Docker Engine on Linux"
                .into(),
            Self::Kubernetes => format!(
                "put {PROFILE_OCI} as everycore.json into /var/lib/kubelet/seccomp on the nodes and set \
                 `securityContext.seccompProfile: {{type: Localhost, localhostProfile: everycore.json}}`; a pod on gVisor needs a runtimeClass on runc"
            ),
            Self::Fargate => {
                "AWS Fargate takes no seccomp profile; use ECS on EC2, or EKS with nodes of your own".into()
            }
            Self::Gvisor => "gVisor has no io_uring; run this container with runc".into(),
            Self::Systemd => "add `SystemCallFilter=@system-service io_uring_setup io_uring_enter io_uring_register` \
                              to the service"
                .into(),
            Self::Container => format!(
                "give the container a seccomp profile that allows it, such as {PROFILE_OCI} (`everycore seccomp --oci`)"
            ),
            Self::Host => {
                "look for a seccomp filter of whoever started this, or a security module (`ausearch -m avc`)".into()
            }
        }
    }

    /// How to raise the limit on locked memory to so many bytes.
    pub(crate) fn memlock_cure(self, bytes: u64) -> String {
        match self {
            Self::Docker | Self::DockerDesktop | Self::Podman => {
                format!("start the container with `--ulimit memlock={bytes}`")
            }
            Self::Kubernetes => format!(
                "Kubernetes has no field for it: raise it for the container runtime on the nodes (`LimitMEMLOCK={bytes}` \
                 in containerd.service), or run fewer shards (--shards)"
            ),
            Self::Systemd => format!("set `LimitMEMLOCK={bytes}` in the service"),
            _ => format!(
                "raise it (`ulimit -l {}`, or memlock in /etc/security/limits.conf), or run fewer shards (--shards)",
                bytes.div_ceil(1024)
            ),
        }
    }

    /// How to raise the limit on open files to so many.
    pub(crate) fn nofile_cure(self, files: u64) -> String {
        match self {
            Self::Docker | Self::DockerDesktop | Self::Podman => {
                format!("start the container with `--ulimit nofile={files}`")
            }
            Self::Kubernetes => {
                format!("raise it for the container runtime on the nodes (`LimitNOFILE={files}` in containerd.service)")
            }
            Self::Systemd => format!("set `LimitNOFILE={files}` in the service"),
            _ => format!("raise it (`ulimit -n {files}`, or nofile in /etc/security/limits.conf)"),
        }
    }

    /// How to set a parameter of the kernel's network, which each network namespace has for itself.
    pub(crate) fn network_sysctl_cure(self, name: &str, value: &str) -> String {
        match self {
            Self::Docker | Self::DockerDesktop | Self::Podman => {
                format!("start the container with `--sysctl {name}=\"{value}\"`")
            }
            Self::Kubernetes => format!(
                "let the kubelet allow it (`--allowed-unsafe-sysctls={name}`) and set `securityContext.sysctls: [{{name: \
                 {name}, value: \"{value}\"}}]` in the pod"
            ),
            _ => format!("`sudo sysctl -w {name}=\"{value}\"` (keep it in /etc/sysctl.d)"),
        }
    }

    /// How to get whole cores of one's own.
    pub(crate) fn cores_cure(self) -> &'static str {
        match self {
            Self::Docker | Self::DockerDesktop | Self::Podman => {
                "start the container with `--cpuset-cpus LIST` in place of `--cpus N`"
            }
            Self::Kubernetes => {
                "give the pod equal requests and limits with whole CPUs, on nodes with `--cpu-manager-policy=static`"
            }
            Self::Systemd => "set `AllowedCPUs=LIST` in place of `CPUQuota=` in the service",
            _ => "give the cgroup a cpuset in place of a quota",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gvisor => "gVisor",
            Self::Fargate => "AWS Fargate",
            Self::Kubernetes => "Kubernetes",
            Self::Podman => "Podman",
            Self::DockerDesktop => "Docker Desktop",
            Self::Docker => "Docker",
            Self::Container => "a container",
            Self::Systemd => "a systemd service",
            Self::Host => "no container",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::fixture;

    #[test]
    fn platform_is_told_by_files_and_environment() {
        #[track_caller]
        fn check(files: &[(&str, &str)], env: &[(&str, &str)], expected: Platform) {
            let root = fixture(files);
            let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap_or_default();
            let find = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let kernel = read("proc/sys/kernel/osrelease");
            assert_eq!(Platform::detect(root.path(), find, &kernel), expected);
        }
        let service = ("proc/self/cgroup", "0::/system.slice/everycore.service\n");
        check(&[], &[], Platform::Host);
        check(&[(".dockerenv", "")], &[], Platform::Docker);
        let desktop = [(".dockerenv", ""), ("proc/sys/kernel/osrelease", "6.10.14-linuxkit\n")];
        check(&desktop, &[], Platform::DockerDesktop);
        check(&[("run/.containerenv", "")], &[("container", "podman")], Platform::Podman);
        check(&[], &[("container", "lxc")], Platform::Container);
        check(&[(".dockerenv", "")], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")], Platform::Kubernetes);
        check(&[], &[("AWS_EXECUTION_ENV", "AWS_ECS_FARGATE")], Platform::Fargate);
        check(&[], &[("AWS_EXECUTION_ENV", "AWS_ECS_EC2")], Platform::Host);
        check(&[service], &[("INVOCATION_ID", "1")], Platform::Systemd);
        check(&[service], &[], Platform::Host);
        check(&[("proc/self/cgroup", "0::/user.slice/session-1.scope\n")], &[("INVOCATION_ID", "1")], Platform::Host);
        let version = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n";
        check(&[("proc/version", version), (".dockerenv", "")], &[], Platform::Gvisor);
    }
}
