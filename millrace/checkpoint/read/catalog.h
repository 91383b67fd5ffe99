// Lists the committed checkpoints of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// A committed checkpoint.
struct ListedCheckpoint {
  std::uint64_t step = 0;  ///< of the training
  std::string key;         ///< of its manifest
  WallTime modified;       ///< when it was committed
  bool pinned = false;     ///< whether `millrace ckpt pin` keeps it
};

/// Returns the committed checkpoints in ascending order of step. A checkpoint whose manifest is damaged, cut off or
/// empty is listed too; opening it fails with kCorrupt. Leaves out those that an attempt committed after another one
/// had taken its place, and appends these to `superseded` unless it is null. Blocks.
Result<std::vector<ListedCheckpoint>> ListCheckpoints(const object::ReadLocation& root, object::Call call = {},
                                                      std::vector<ListedCheckpoint>* superseded = nullptr);

/// Returns the error (kNotFound) of a place without committed checkpoints. If the URL is that of a run whose
/// checkpoints are in a folder, or that of one step, the message has the right URL. Blocks.
Error NoCheckpoints(const object::ReadLocation& root, std::string_view url, const object::Call& call = {});

}  // namespace millrace::checkpoint
