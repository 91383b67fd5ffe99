// Checks the arguments of an operation on this rank.
#pragma once

#include <span>
#include <string>

#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::collectives {

// Each returns kInvalidArgument with the name of the operation and what is wrong. None looks at which device elements
// are on, but for the two of CheckParts(), which are on one.

Status CheckElements(const char* operation, const Elements& elements);
Status CheckReducible(const char* operation, const Elements& elements, Reduction reduction);
Status CheckAllReducible(const Elements& elements, Reduction reduction);
/// Checks that `all` is `ranks` times `mine`.
Status CheckParts(const char* operation, const Elements& all, const Elements& mine, int ranks);
Status CheckPeer(const char* operation, int peer, int self, int ranks);
/// Checks the members of a group that is split from one of `ranks`.
Status CheckSplit(const std::string& name, std::span<const int> members, int self, int ranks);

}  // namespace millrace::collectives
