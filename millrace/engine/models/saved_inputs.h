// The inputs that blocks keep until the backward pass computes them again.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// The inputs of one forward pass, first block first. They stay where they are, or wait in pinned memory of the host;
/// then each comes back while the block behind it goes backward. One thread at a time.
class SavedInputs {
 public:
  /// `copies`: a stream for copies to the host and back; nothing: inputs stay.
  explicit SavedInputs(std::optional<c10::Stream> copies) : copies_(copies) {}

  /// Keeps the input of the next block. Returns what gives it back outside of any graph, to be called once.
  std::function<Stream()> Keep(const Stream& x);

 private:
  class OnHost;

  const std::optional<c10::Stream> copies_;
  std::shared_ptr<OnHost> last_;  ///< of the block before
};

}  // namespace millrace::engine
