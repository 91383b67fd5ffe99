// TensorBoard event files, written by hand: the record format is docs/formats/tensorboard.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"

namespace millrace::metrics {

/// Encodes events; the bytes of Header() followed by those of Scalars() calls are an event file.
std::string EventFileHeader(WallTime time);
std::string EventFileScalars(WallTime time, std::int64_t step,
                             const std::vector<std::pair<std::string_view, float>>& scalars);

/// One event file under a URL prefix (folder or bucket). A bucket has no append: the object is put whole at each Flush,
/// so files start anew after `roll_bytes`. One writer thread.
class EventWriter {
 public:
  struct Options {
    std::uint64_t roll_bytes = 1 << 20;
    std::string suffix;  ///< distinguishes writers: "rank0"
  };
  static Result<std::unique_ptr<EventWriter>> Open(object::Connection& connection, std::string_view url_prefix,
                                                   Options options, Clock& clock);
  virtual ~EventWriter() = default;
  virtual void Scalars(std::int64_t step, const std::vector<std::pair<std::string_view, float>>& scalars) = 0;
  virtual Status Flush(object::Call call = {}) = 0;  ///< blocks until the store has the bytes
};

}  // namespace millrace::metrics
