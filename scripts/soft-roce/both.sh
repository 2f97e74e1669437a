# For the guest: perftest on one device of Soft-RoCE, and on one of the software ConnectX, on the same emulated processors.
set -eu
ip link add d0 type dummy
ip addr add 10.8.0.1/24 dev d0
ip link set d0 mtu 4500 up
rdma link add rxe0 type rxe netdev d0
sleep 1
export SCALE="${SCALE:-100}"
echo "Soft-RoCE"
sh /t/perftest.sh rxe0 1
echo
echo "software ConnectX"
/t/gicbench nic exec --link-layer ethernet -- sh /t/perftest.sh mlx5_0 3
