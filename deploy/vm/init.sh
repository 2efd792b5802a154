#!/busybox sh
# The first process of the machine that `kernels` boots: shows on the serial line what everycore says and does here.
/busybox mkdir -p /bin /proc /sys /dev /tmp /etc /www
/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir /dev/shm
ifconfig lo 127.0.0.1 up
echo root:x:0:0::/:/bin/sh >/etc/passwd
echo everycore:x:65532:65532::/:/bin/sh >>/etc/passwd
chmod 1777 /tmp
echo '<p>from a file' >/www/page.html
head -c 3000000 /dev/urandom >/www/large
head -c 200000 /dev/urandom | od -An -tx1 >/tmp/body
export EVERYCORE_LISTEN=127.0.0.1:8080

# Runs a command as a section of the report.
section() {
    local name=$1 code=0
    shift
    echo "@@ $name"
    "$@" 2>&1 || code=$?
    echo "@@ $name ends $code"
}

become='exec "$0" "$@"'
user() { su -m -c "$become" -- everycore "$@"; }

get() { wget -q -O - "http://127.0.0.1:8080$1"; }

# Starts a server with further flags as a user without privileges, runs a command against it, and ends it: all is well
# only if it was.
serving() {
    local command=$1 code=0 server
    shift
    exec su -m -c "$become" -- everycore /everycore serve "$@" >/tmp/said 2>&1 &
    server=$!
    until user /everycore healthcheck >/dev/null 2>&1; do
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    $command || code=1
    kill -TERM $server
    wait $server || code=$?
    cat /tmp/said
    return $code
}

smoke() {
    [ "$(get '/yo?name=X')" = 'Hey X!' ] &&
        wget -q -O /tmp/echoed --post-file /tmp/body http://127.0.0.1:8080/echo && cmp /tmp/body /tmp/echoed &&
        get '/__stats?format=json' | grep -q '"missing": *\[\]' &&
        load -c 50 -n 1000 && load -c 20 -n 200 --no-keepalive
}

# Without the picture of its progress; its result only if there was an error.
load() {
    /everycore bench "$@" --expect-status 200 --fail-if 'errors>0' http://127.0.0.1:8080/fast >/tmp/load 2>/dev/null ||
        { cat /tmp/load; return 1; }
}

files() {
    [ "$(get /page.html)" = '<p>from a file' ] && get /large >/tmp/large && cmp /www/large /tmp/large
}

# Nobody may have a ring; then the group of ours may; then only root.
disabled() {
    local sysctl=/proc/sys/kernel/io_uring_disabled
    echo 2 >$sysctl
    section disabled-2 /everycore serve
    echo 1 >$sysctl
    section disabled-1 user /everycore serve
    echo 65532 >/proc/sys/kernel/io_uring_group
    section disabled-1-group serving smoke
    echo 0 >$sysctl
}

ulimit -l 8192
section doctor user /everycore doctor --json --for host
section doctor-text user /everycore doctor
if user /everycore doctor >/dev/null; then
    section smoke serving smoke
    section files serving files --root /www
    for balance in cpu random round-robin least-conn; do section balance-$balance serving smoke --balance $balance; done
    [ ! -e /proc/sys/kernel/io_uring_disabled ] || disabled
    ulimit -l 512
    section memlock-512 user /everycore doctor --json --for host --shards 2
    ulimit -l 8192
    for test in /tests/*; do [ ! -e "$test" ] || section "test-${test##*/}" "$test"; done
else
    section refused user /everycore serve
fi
poweroff -f
