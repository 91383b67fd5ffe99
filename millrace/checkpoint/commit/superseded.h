// Finds the manifests that an attempt committed after another one had taken its place.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/owner_record.h"
#include "millrace/object/read_store.h"

namespace millrace::checkpoint {

/// Reads the owner object; nothing if there is none. Blocks.
/// Errors: those of OwnerRecord::Parse, and those of the store.
Result<std::optional<OwnerRecord>> ReadOwner(object::ReadStore& store, const CheckpointKeys& keys,
                                             const object::Call& call = {});

/// Returns those of `steps` whose manifests are superseded. `steps` must come from a listing that has ended: the owner
/// object is read after it. Reads the beginning of each manifest that may be superseded, and of no other one. Blocks.
Result<std::set<std::uint64_t>> FindSuperseded(object::ReadStore& store, const CheckpointKeys& keys,
                                               const std::vector<std::uint64_t>& steps, const object::Call& call = {});

/// Reads the epoch of a manifest; 0 if it names none, or does not exist. Blocks.
Result<std::uint64_t> ReadEpoch(object::ReadStore& store, const std::string& manifest_key,
                                const object::Call& call = {});

}  // namespace millrace::checkpoint
