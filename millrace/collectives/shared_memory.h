// Collective operations through memory that all ranks of a group map: processes of one machine, or threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/segment.h"
#include "millrace/collectives/transport.h"

namespace millrace::collectives {

/// Returns the size of the segment for a group. It depends on nothing but the number of ranks.
std::size_t SharedMemoryBytes(int ranks);

/// Prepares a segment of SharedMemoryBytes(). Its creator calls it, before any rank connects.
void InitializeSharedMemory(Segment& segment, int ranks);

/// Makes a group of some ranks of a group: as Collective::Split.
using GroupSplitter =
    std::function<Result<std::unique_ptr<Collective>>(const std::string& name, std::span<const int> members)>;

/// Returns rank `members.rank` of a group that exchanges through `segment`. Each rank makes one.
///
/// Tensors of any size pass in chunks. Each rank copies its chunks into slots of the segment; the others read them
/// there, so that chunks stay in the processor's cache. A rank that waits sleeps in the kernel (futex). It notices at
/// once if a peer fails an operation, and within 50 ms if a peer's process has ended.
///
/// All-reduce is a reduce-scatter, then an all-gather. Both are pipelined: while a rank adds one chunk, its peers copy
/// the next one.
std::unique_ptr<Transport> MakeSharedMemoryTransport(std::shared_ptr<Segment> segment, GroupMembers members,
                                                     Duration timeout, GroupSplitter splitter);

}  // namespace millrace::collectives
