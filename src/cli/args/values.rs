//! The values of flags: what they may be, and how they are read. Floor 8.

use crate::config::{AccessLogFormat, Address, Balance, Secret, StatsPolicy};
use crate::topology::PinMode;
use clap::ValueEnum;
use std::{str::FromStr, time::Duration};

/// A value or the word `auto`. (clap takes a bare `Option` for "may be missing".)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto<T>(pub Option<T>);

/// A value or the word `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off<T>(pub Option<T>);

/// `auto`, `on`, `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// As said above.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl From<Switch> for PinMode {
    fn from(switch: Switch) -> Self {
        match switch {
            Switch::Auto => Self::Auto,
            Switch::On => Self::On,
            Switch::Off => Self::Off,
        }
    }
}

/// What `--compress` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// Nothing
    Off,
    /// What handlers make
    Dynamic,
    /// Files too
    All,
}

/// What `--stats` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsArg {
    /// For the listeners of everyone.
    pub policy: StatsPolicy,
    /// For the stats alone.
    pub listen: Option<Address>,
}

pub(in crate::cli) fn stats(text: &str) -> Result<StatsArg, String> {
    let policy = match text {
        "auto" => StatsPolicy::Auto,
        "on" => StatsPolicy::On,
        "off" => StatsPolicy::Off,
        _ => {
            let listen = text.parse().map_err(|error| format!("expected on, off, auto or an address: {error}"))?;
            return Ok(StatsArg { policy: StatsPolicy::Off, listen: Some(listen) });
        }
    };
    Ok(StatsArg { policy, listen: None })
}

/// The text itself, or of a file what is before its last line end.
pub(in crate::cli) fn secret(text: &str) -> Result<Secret, String> {
    match text.strip_prefix('@') {
        None => Ok(Secret(text.to_owned())),
        Some(file) => match std::fs::read_to_string(file) {
            Ok(text) => Ok(Secret(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(error) => Err(format!("cannot read {file}: {error}")),
        },
    }
}

/// [`Balance`] as clap shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BalanceArg {
    /// The kernel's hash of addresses and ports
    Kernel,
    /// The shard of the core that received the first packet
    Cpu,
    /// By chance, in the kernel
    Random,
    /// Each shard in turn
    RoundRobin,
    /// The shard with the fewest open connections
    LeastConn,
}

impl From<BalanceArg> for Balance {
    fn from(arg: BalanceArg) -> Self {
        match arg {
            BalanceArg::Kernel => Self::Kernel,
            BalanceArg::Cpu => Self::Cpu,
            BalanceArg::Random => Self::Random,
            BalanceArg::RoundRobin => Self::RoundRobin,
            BalanceArg::LeastConn => Self::LeastConn,
        }
    }
}

pub(in crate::cli) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number in digits, without a unit".to_owned())
}

/// What a variable says of a flag that takes no value.
pub(in crate::cli) fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

pub(in crate::cli) fn shards(text: &str) -> Result<Auto<usize>, String> {
    match text {
        "auto" => Ok(Auto(None)),
        _ => text.parse().map(|n| Auto(Some(n))).map_err(|_| "expected a number, or auto".to_owned()),
    }
}

pub(in crate::cli) fn number_or_off(text: &str) -> Result<Off<u64>, String> {
    match text {
        "off" => Ok(Off(None)),
        _ => text.parse().map(|n| Off(Some(n))).map_err(|_| "expected a number, or off".to_owned()),
    }
}

pub(in crate::cli) fn path_or_off(text: &str) -> Result<Off<String>, String> {
    Ok(Off((text != "off").then(|| text.to_owned())))
}

pub(in crate::cli) fn duration_or_off(text: &str) -> Result<Off<Duration>, String> {
    match text {
        "off" => Ok(Off(None)),
        _ => duration(text).map(|duration| Off(Some(duration))),
    }
}

/// Whole numbers with a unit; without one, seconds.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let micros_per_unit: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => 0,
    };
    let micros = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(micros_per_unit));
    match micros.filter(|_| micros_per_unit > 0) {
        Some(micros) => Ok(Duration::from_micros(micros)),
        None => Err("expected a time such as 10, 10s, 250ms, 2m".to_owned()),
    }
}

pub(in crate::cli) fn access_log(text: &str) -> Result<Off<AccessLogFormat>, String> {
    match text {
        "off" => Ok(Off(None)),
        "combined" => Ok(Off(Some(AccessLogFormat::Combined))),
        "json" => Ok(Off(Some(AccessLogFormat::Json))),
        _ => Err("expected off, combined or json".to_owned()),
    }
}
