// Collective operations between machines, over connections of TCP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/shared_memory.h"
#include "millrace/collectives/tcp/rank_network.h"
#include "millrace/collectives/transport.h"

namespace millrace::collectives {

/// Connects this rank with the other members of a group. Blocks until all are there or `timeout` has passed.
/// `group`: unique among the groups of the job. `addresses`: RankNetwork::Address() of each member.
///
/// Every two members have a connection for operations, and one for the messages of each direction, which is made by
/// the first of them. The bytes of tensors are all that passes: both ends know how many come, and in which order. The
/// operations are those of direct_exchange.h. The thread that waits for an operation also moves its bytes; there are no
/// other threads. A wait ends with an error if a peer is gone, or moves no byte for `timeout`.
Result<std::unique_ptr<Transport>> ConnectTcpTransport(std::shared_ptr<RankNetwork> network, std::string group,
                                                       std::vector<std::string> addresses, GroupMembers members,
                                                       Duration timeout, GroupSplitter splitter);

}  // namespace millrace::collectives
