// Reading a committed checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"
#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/contents.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

struct Manifest;

/// Called with the number of bytes done since the last call. Calls come from any thread, several at a time.
using ByteProgress = std::function<void(std::uint64_t bytes)>;

/// Reads one committed checkpoint, wholly or in parts, on any number of ranks. Thread-safe. Compares every chunk that
/// it touches with the chunk's CRC-32C; a mismatch is kCorrupt, and the message names file and offset.
class Reader {
 public:
  /// Opens the checkpoint of `step`, or the newest without one.
  /// Errors: kNotFound if there is none.
  static Result<std::unique_ptr<Reader>> Open(object::Connection& connection, std::string_view url,
                                              std::optional<std::uint64_t> step = std::nullopt, object::Call call = {});
  virtual ~Reader() = default;
  /// Everything of the manifest (format/manifest.h, which programs that use the libraries do not have).
  virtual const Manifest& manifest() const = 0;
  /// Returns what the checkpoint holds. Lives as long as the reader.
  const CheckpointContents& contents() const;
  /// Returns the caller's metadata as one line of JSON: what Writer::Start got. "null" if there is none.
  std::string MetaText() const;
  virtual const std::string& name() const = 0;  ///< "s3://runs/llama-demo/step-00000150"

  /// Fills `into`, a whole number of elements, with elements of the flattened tensor from element `begin` on. If it
  /// fails, the content of `into` is undefined.
  /// Errors: kNotFound if there is no such tensor, or if its file was removed meanwhile.
  virtual Status Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call = {}) = 0;

  /// Consecutive elements of a box of a tensor, such as a rank's shard. The box need not be one that was saved.
  struct TensorRange {
    std::string tensor;       ///< its name
    std::uint64_t begin = 0;  ///< first element, counted within the box
    MutableByteSpan into;     ///< gets the elements; a whole number of them
    Box box = {};             ///< of the tensor; by default all of it
  };
  /// Reads many runs of elements at once. Merges near ranges, and keeps up to `parallel` requests of up to 32 MiB in
  /// flight. Fails as Read does.
  virtual Status ReadMany(const std::vector<TensorRange>& wanted, int parallel = 8, object::Call call = {}) = 0;

  /// The amount that Verify read.
  struct VerifyStats {
    std::uint64_t files = 0;   ///< complete files
    std::uint64_t chunks = 0;  ///< that have a checksum
    std::uint64_t bytes = 0;   ///< of the files
  };
  /// Reads and checks every byte.
  virtual Result<VerifyStats> Verify(int parallel = 8, object::Call call = {}, const ByteProgress& progress = {}) = 0;
};

}  // namespace millrace::checkpoint
