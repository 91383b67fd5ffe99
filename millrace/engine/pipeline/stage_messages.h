// Exchanges hidden states and their gradients with the neighbours in a pipeline.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/engine/layout/pipeline_passes.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {

/// The messages of one rank in one call of the runner. A receiver knows the order in which each neighbour sends
/// (MessagesBetween), and posts its receives in that order, one ahead of what it needs. What arrives early waits here.
/// Messages between stages of the same rank do not leave it.
///
/// All functions throw ErrorException if the group fails. The destructor waits for what is under way; abort the group
/// first if the neighbours will not do their part. Borrows the group and the clock. One thread at a time.
class StageMessages {
 public:
  /// Returns an empty tensor that a message fits into.
  using Allocate = std::function<at::Tensor(const PipelineMessage& message)>;

  /// `passes_of` returns the passes of a rank. `group` may be null if the pipeline has one rank.
  StageMessages(const PipelineShape& shape, const std::function<std::vector<PipelinePass>(int rank)>& passes_of,
                Collective* group, Allocate allocate, Clock& clock);

  /// Sends `tensor` in the background, which must be contiguous and must not be changed any more.
  void Send(const PipelineMessage& message, at::Tensor tensor);
  /// Blocks until the message is there, and returns it.
  at::Tensor Receive(const PipelineMessage& message);
  /// Blocks until at most `sends` messages are still on their way.
  void WaitForSends(std::size_t most_under_way);
  /// Returns how long calls have blocked.
  Duration waited() const { return waited_; }

 private:
  struct Arrival {
    PipelineMessage message;
    at::Tensor tensor;
    Collective::Operation operation;
  };
  /// The messages of one neighbour.
  struct Inbox {
    std::vector<PipelineMessage> expected;
    std::size_t posted = 0;        ///< receives that have been started
    std::deque<Arrival> arrivals;  ///< those that were not yet asked for
  };
  int RankOf(const PipelineMessage& message) const { return message.stage % shape_.ranks; }
  int SenderOf(const PipelineMessage& message) const;
  void PostNext(int sender, Inbox& inbox);
  void Await(Collective::Pending& operation);

  const PipelineShape shape_;
  Collective* const group_;
  const int rank_;
  const Allocate allocate_;
  Clock& clock_;
  std::map<int, Inbox> inboxes_;  ///< by sender
  std::deque<Collective::Operation> sends_;
  std::deque<Arrival> own_;  ///< between stages of this rank
  Duration waited_{};
};

}  // namespace millrace::engine
