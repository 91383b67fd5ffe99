// One listing of everything beside the files of checkpoints: manifests, marks and the owner object.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/read/catalog.h"

namespace millrace::checkpoint {

/// The result of one listing.
struct StepListing {
  std::vector<ListedCheckpoint> committed;  ///< in ascending order of step, superseded ones too
  std::optional<std::string> owner_etag;  ///< of the owner object; nothing: there is none. Empty: the store lists none
};

/// Lists manifests, whoever committed them. ListCheckpoints() is for readers. Blocks.
Result<StepListing> ListSteps(const object::ReadLocation& root, const object::Call& call = {});

}  // namespace millrace::checkpoint
