// The contents of a committed checkpoint: tensors by name, the files that their bytes are in, and where the checkpoint
// is from.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// A run of consecutive elements, in C order, of a box of a tensor, and its place in a file. The run is the whole box,
/// or a part of it if an optimizer sharded flat buffers.
struct Slice {
  std::string tensor;          ///< key of CheckpointContents::tensors
  std::uint64_t begin = 0;     ///< first element, counted within the box
  std::uint64_t elements = 0;  ///< their number
  std::string file;            ///< key of CheckpointContents::files
  std::uint64_t offset = 0;    ///< of its bytes in that file
  Box box;                     ///< of the tensor
  bool operator==(const Slice&) const = default;
};
/// Size and checksums of a file.
struct FileMeta {
  std::uint64_t size = 0;         ///< bytes
  std::uint64_t chunk_bytes = 0;  ///< what one checksum covers
  /// The CRC-32C of each chunk of chunk_bytes; the last chunk may be short. Empty if unknown (Hugging Face files).
  std::vector<std::uint32_t> chunk_crc32c;
  bool operator==(const FileMeta&) const = default;
};

/// The group of the model's weights; the names behind it are Hugging Face's.
inline constexpr std::string_view kModelGroup = "model/";
/// The group of an adapter's (LoRA) weights; the names behind it are PEFT's.
inline constexpr std::string_view kAdapterGroup = "adapter/";
/// The group of an optimizer's state. A tensor's name behind it is the state's, a slash, and the parameter's.
inline constexpr std::string_view kOptimizerGroup = "optimizer/";
/// Small files that came with a model, such as its tokenizer's, are tensors of bytes in this group.
inline constexpr std::string_view kFilesGroup = "files/";

/// Identifies a checkpoint below one root.
struct CheckpointId {
  std::uint64_t step = 0;  ///< of the training
  std::string attempt;     ///< random: tells two saves of a step from each other
  auto operator<=>(const CheckpointId&) const = default;
};

/// The run that made a checkpoint: all attempts of one supervisor, or the ranks of one start without a supervisor.
struct RunLineage {
  std::string id;                  ///< random; empty: unknown, as in checkpoints of older versions
  int attempt = 1;                 ///< the number of this start of the run
  std::vector<std::string> after;  ///< the ids of the runs from whose checkpoints it went on

  /// Returns whether a run belongs to the past of this one.
  bool WentOnFrom(std::string_view run) const { return std::ranges::find(after, run) != after.end(); }
  bool operator==(const RunLineage&) const = default;
};

/// A checkpoint without the caller's metadata. Tensor names carry their group as a prefix: "model/…", "optimizer/…".
struct CheckpointContents {
  std::uint64_t step = 0;                 ///< of the training
  int ranks = 1;                          ///< that saved it
  std::string attempt;                    ///< random name of this attempt at the step, and of the folder of its files
  std::uint64_t epoch = 0;                ///< of the owner that saved it; 0: its writer was no owner
  std::string created;                    ///< ISO 8601
  Provenance written_by;                  ///< the program
  RunLineage run;                         ///< the run that saved it
  std::optional<CheckpointId> parent;     ///< the checkpoint that the run resumed from, or saved before
  std::map<std::string, double> metrics;  ///< finite, such as {"loss": 2.31}; retention ranks checkpoints by them
  std::map<std::string, TensorMeta> tensors;  ///< by name
  std::vector<Slice> slices;                  ///< cover every tensor exactly once
  std::map<std::string, FileMeta> files;      ///< by key relative to the step's folder

  /// Returns step and attempt.
  CheckpointId id() const { return {step, attempt}; }
  std::uint64_t FileBytes() const;  ///< of all files
};

}  // namespace millrace::checkpoint
