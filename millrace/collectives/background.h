// Runs the operations of a transport in the background.
#pragma once

#include <memory>
#include <string>

#include "millrace/collectives/collective.h"
#include "millrace/collectives/transport.h"

namespace millrace::collectives {

/// Returns a group whose operations run on threads of its own, in lanes. Operations of all ranks have one lane. Sends
/// to a peer have one lane for each peer, and so have receives from a peer. A lane runs its operations in the order in
/// which they were started. So a send that waits for its receiver delays neither other peers nor an all-reduce.
///
/// The first error of any operation aborts the transport. All operations that fail return that error, also those that
/// were under way.
/// The destructor aborts operations that are still under way. Traces show the operations with `name`, the group's.
std::unique_ptr<Collective> MakeCollective(std::unique_ptr<Transport> transport, std::string name);

/// Returns a group of one rank. Its operations are done when they have started.
std::unique_ptr<Collective> MakeSoloCollective();

}  // namespace millrace::collectives
