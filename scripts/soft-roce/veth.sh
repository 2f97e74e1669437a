# For the guest: two devices of Soft-RoCE, rxe0 at 10.8.0.1 and rxe1 at 10.8.0.2, on two ends of one wire. Both are of this
# machine, so routes by device keep frames from taking the short way.
sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1
ip link add va type veth peer name vb
ip addr add 10.8.0.1/24 dev va
ip addr add 10.8.0.2/24 dev vb
for end in va vb; do
    # 4096 bytes of payload a packet.
    ip link set $end mtu 4500 up
    sysctl -q -w net.ipv4.conf.$end.rp_filter=0 net.ipv4.conf.$end.accept_local=1
done
ip rule add pref 10 oif va lookup 101
ip rule add pref 11 oif vb lookup 102
ip route add 10.8.0.0/24 dev va src 10.8.0.1 table 101
ip route add 10.8.0.0/24 dev vb src 10.8.0.2 table 102
# The table of this machine's own addresses comes after those.
ip rule add pref 100 lookup local
ip rule del pref 0
ip neigh replace 10.8.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
ip neigh replace 10.8.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
rdma link add rxe0 type rxe netdev va
rdma link add rxe1 type rxe netdev vb
sleep 1
