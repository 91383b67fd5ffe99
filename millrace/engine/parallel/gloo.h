// Collective operations between machines, over the TCP connections of Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/shared_memory.h"
#include "millrace/engine/parallel/transport.h"

namespace millrace::engine {

/// Connects this rank with the other members, which meet at `store`. Blocks until all are there or `timeout` has
/// passed. `loopback`: all ranks are on this machine. REQUIRES: the process ignores SIGPIPE, which Gloo's writes to a
/// lost member raise.
///
/// Gloo carries messages between pairs of ranks; the operations are ours (direct_exchange.h). Its own would sum
/// bfloat16 in bfloat16, and it has no reduce-scatter.
Result<std::unique_ptr<Transport>> ConnectGlooTransport(c10::intrusive_ptr<c10d::Store> store, GroupMembers members,
                                                        bool loopback, Duration timeout, GroupSplitter splitter);

}  // namespace millrace::engine
