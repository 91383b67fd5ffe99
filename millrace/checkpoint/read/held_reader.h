// A reader with a hold: no collector removes its checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

/// A checkpoint that is being read, and the hold that keeps collectors away from it.
struct HeldReader {
  std::unique_ptr<Reader> reader;
  std::unique_ptr<CheckpointLease> hold;  ///< null if the caller may not write to the store; OpenHeld logs that
};

/// Opens as Reader::Open does and takes a hold. If a collector removes the checkpoint meanwhile, tries again: without a
/// `step` it then opens the next newest, with one it fails with kNotFound. Blocks.
Result<HeldReader> OpenHeld(object::Connection& connection, std::string_view url, std::optional<std::uint64_t> step,
                            const Logger& log, object::Call call = {});

}  // namespace millrace::checkpoint
