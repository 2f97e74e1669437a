#!/bin/sh
# One table of perftest: each line a command and what it says; with TIMES=1 also the processor time of its threads.
#
#   perftest.sh [DEVICE [GID-INDEX]]
#
# SCALE divides the numbers of operations, for slow machines. For /bin/sh of Debian, here and in the guest.
device=${1:-mlx5_0}
gid=${2:+-x $2}
scale=${SCALE:-1}
port=18600
echo "command                                  result  unit          processor time, s"
spent_by() { # PID: of its first thread, and of the software NIC's, in hundredths of a second
    for task in /proc/"$1"/task/*; do
        line=$(cat "$task/stat" 2>/dev/null) || continue
        # The name may hold blanks: what counts begins behind it.
        name=${line#*\(}
        name=${name%\)*}
        number=${task##*/}
        echo "${line##*\) }" | {
            read -r _ _ _ _ _ _ _ _ _ _ _ user system _
            case $name in
                gicbench-nic) echo "engine $((user + system))" ;;
                *) [ "$number" = "$1" ] && echo "client $((user + system))" ;;
            esac
        }
    done
}
run() { # UNIT FIELD COMMAND…: FIELD counts from the end of the line of results
    unit=$1 field=$2
    shift 2
    port=$((port + 1))
    # shellcheck disable=SC2086
    "$@" -d "$device" $gid -p $port -F >/dev/null 2>&1 &
    server=$!
    sleep 1
    # shellcheck disable=SC2086
    "$@" -d "$device" $gid -p $port -F 127.0.0.1 >/tmp/perftest.$$ 2>&1 &
    client=$!
    spent=
    if [ -n "${TIMES:-}" ]; then
        while kill -0 $client 2>/dev/null; do
            now=$(spent_by $client; spent_by $server | sed 's/client/server/')
            [ -n "$now" ] && spent=$now
            sleep 0.1
        done
        spent=$(echo "$spent" | awk '$1 == "client" {c = $2} $1 == "engine" {e = e " " $2 / 100}
            END {printf "client %.2f, engines%s", c / 100, e}')
    fi
    # A server that its client left behind waits for ever.
    wait $client || kill $server 2>/dev/null
    wait $server 2>/dev/null
    result=$(awk -v field="$field" '/^ *#bytes/ {found = 1; next} found && NF > 3 {print $(NF - field); exit}' \
        /tmp/perftest.$$)
    rm -f /tmp/perftest.$$
    printf '%-34s %12s  %-12s  %s\n' "$*" "${result:-failed}" "$unit" "$spent"
}
some() { echo $(($1 / scale / 32 * 32)); }
run 'M msg/s' 0 ib_write_bw -s 8 -l 32 -n "$(some 9600000)"
run 'M msg/s' 0 ib_send_bw -s 8 -l 32 -n "$(some 320000)"
run 'MB/s' 1 ib_write_bw -s 65536 -n "$(some 32000)"
run 'MB/s' 1 ib_read_bw -s 65536 -n "$(some 32000)"
run 'MB/s' 1 ib_send_bw -s 65536 -n "$(some 32000)"
run 'us (median)' 4 ib_write_lat -s 8 -n "$(some 3200)"
run 'us (median)' 4 ib_send_lat -s 8 -e -n "$(some 3200)"
