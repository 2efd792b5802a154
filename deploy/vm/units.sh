#!/bin/bash
# Runs in the machine that `units` boots, as a service of systemd there: tries the shipped units, says on the serial line what
# holds, and turns the machine off.
unit=everycore.service

show() { systemctl show -P "$1" "${2:-$unit}"; }

# Says how a check ended, with what the service logged if it did not hold.
check() {
    local name=$1
    if "$name"; then
        echo "@@ ${name//_/ }: ok"
    else
        echo "@@ ${name//_/ }: FAILED"
        systemctl status --no-pager --lines 30 "$unit" everycore.socket
        systemctl show -p ActiveState,SubState,Result,NRestarts,ExecMainStatus,StatusText "$unit"
    fi 2>&1
}

# Waits until a command succeeds.
until_true() {
    local end=$((SECONDS + 60))
    until "$@"; do
        ((SECONDS < end)) || { echo "not within a minute: $*"; return 1; }
        sleep 0.1
    done
}

get() {
    local line
    exec 5<>/dev/tcp/127.0.0.1/8080 || return 1
    printf 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1" >&5
    while read -r -t 30 -u 5 line; do :; done
    exec 5>&-
    echo "$line"
}
answers() { [[ $(get '/yo?name=X') == 'Hey X!' ]]; }

# Settings of this machine's own, for one check; none takes them back.
with() {
    rm -rf "/run/systemd/system/$unit.d"
    if (($#)); then
        mkdir -p "/run/systemd/system/$unit.d"
        printf '[Service]\n' >"/run/systemd/system/$unit.d/test.conf"
        printf '%s\n' "$@" >>"/run/systemd/system/$unit.d/test.conf"
    fi
    systemctl daemon-reload
    systemctl reset-failed "$unit" 2>/dev/null
    true
}
is() { [[ $(show "$1") == "$2" ]]; }

# ---- checks ---------------------------------------------------------------------------------------

start_waits_until_it_is_ready() {
    # Type=notify: this returns once READY=1 was told.
    systemctl start "$unit" && is ActiveState active && [[ $(show StatusText) == serving:* ]] && answers
}

start_of_one_that_never_tells_fails() {
    # The control: what makes `start` wait is the notification.
    with ExecStart= 'ExecStart=/bin/sleep 600' TimeoutStartSec=2 Restart=no
    ! systemctl start "$unit" && is Result timeout
}

process_is_confined() {
    local status
    systemctl start "$unit" && status=$(<"/proc/$(show MainPID)/status") || return 1
    local uid
    uid=$(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' <<<"$status")
    ((uid >= 61184 && uid <= 65519)) && grep -q $'^Seccomp:\t2' <<<"$status" &&
        grep -q $'^NoNewPrivs:\t1' <<<"$status" && grep -q $'^CapEff:\t0*$' <<<"$status" &&
        grep -qE '^Max locked memory +8388608 +8388608' "/proc/$(show MainPID)/limits" &&
        journalctl -u "$unit" | grep -q 'engine: io_uring on Linux .* (a systemd service): multishot accept'
}

watchdog_is_fed() {
    with WatchdogSec=2
    systemctl restart "$unit" || return 1
    local fed before
    before=$(show WatchdogTimestampMonotonic)
    for _ in 1 2 3 4 5; do
        until_true eval '[[ $(show WatchdogTimestampMonotonic) != '"$before"' ]]' || return 1
        before=$(show WatchdogTimestampMonotonic)
    done
    is NRestarts 0 && answers
}

service_that_hangs_is_restarted() {
    with WatchdogSec=2
    systemctl restart "$unit" || return 1
    kill -STOP "$(show MainPID)"
    until_true is NRestarts 1 && until_true is ActiveState active && answers &&
        journalctl -u "$unit" | grep -q 'Watchdog timeout'
}

stop_drains_and_ends_with_0() {
    systemctl restart "$unit" || return 1
    exec 6<>/dev/tcp/127.0.0.1/8080
    printf 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfirst' >&6
    answers || return 1
    systemctl stop --no-block "$unit"
    until_true eval '[[ $(show StatusText) == draining ]]' || return 1
    printf 'after' >&6
    local answer
    answer=$(timeout 30 cat <&6)
    exec 6>&-
    [[ $answer == 'HTTP/1.1 200 '*firstafter ]] || { echo "got: $answer"; return 1; }
    until_true is ActiveState inactive && is Result success && is ExecMainStatus 0 &&
        journalctl -u "$unit" | grep -q 'drained$'
}

restart_right_after_a_stop_works() {
    # Just what the shards need: on a kernel that charges rings, those of the process before are in the way for a moment.
    with LimitMEMLOCK=1M
    systemctl start "$unit" || return 1
    for _ in 1 2 3 4 5; do
        systemctl restart "$unit" && answers || return 1
    done
    is NRestarts 0
}

killed_one_is_started_again() {
    with
    systemctl start "$unit"
    kill -KILL "$(show MainPID)"
    until_true is NRestarts 1 && until_true is ActiveState active && answers
}

forbidden_ring_is_explained_and_not_tried_again() {
    with 'SystemCallFilter=~io_uring_setup io_uring_enter io_uring_register'
    systemctl restart "$unit"
    until_true is ActiveState failed && is ExecMainStatus 69 && is NRestarts 0 &&
        journalctl -u "$unit" | grep -q 'everycore: io_uring is not available: .* add `SystemCallFilter=@system-service io_uring_setup'
}

first_connection_starts_it_by_the_socket_unit() {
    with
    systemctl stop "$unit"
    systemctl start everycore.socket && is ActiveState inactive && answers && is ActiveState active
}

no_connection_is_refused_while_it_restarts() {
    local pid
    pid=$(show MainPID)
    systemctl restart --no-block "$unit"
    for _ in {1..100}; do answers || return 1; done
    until_true eval '[[ $(show MainPID) != '"$pid"' ]]' && until_true is ActiveState active && answers
}

doctor_finds_nothing_broken_in_the_sandbox() {
    systemctl stop everycore.socket "$unit"
    with Type=oneshot Restart=no ExecStart= 'ExecStart=/usr/local/bin/everycore doctor'
    systemctl start "$unit" && is ExecMainStatus 0 && journalctl -u "$unit" -o cat | grep '(a systemd service)$' &&
        journalctl -u "$unit" -o cat | grep 'can serve here: 0 broken'
}

# ---------------------------------------------------------------------------------------------------

echo "@@ machine: Linux $(uname -r), $(systemctl --version | head -n 1)"
check start_waits_until_it_is_ready
systemctl stop "$unit"
check start_of_one_that_never_tells_fails
with
check process_is_confined
check watchdog_is_fed
check service_that_hangs_is_restarted
with
check stop_drains_and_ends_with_0
check restart_right_after_a_stop_works
check killed_one_is_started_again
check forbidden_ring_is_explained_and_not_tried_again
check first_connection_starts_it_by_the_socket_unit
check no_connection_is_refused_while_it_restarts
check doctor_finds_nothing_broken_in_the_sandbox
with
echo "@@ score: $(systemd-analyze security --no-pager "$unit" | tail -n 1)"
echo "@@ end"
systemctl poweroff --force --force
