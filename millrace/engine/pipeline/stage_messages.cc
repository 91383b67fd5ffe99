#include "millrace/engine/pipeline/stage_messages.h"

#include <algorithm>
#include <utility>

#include "millrace/engine/errors.h"

namespace millrace::engine {

StageMessages::StageMessages(const PipelineShape& shape,
                             const std::function<std::vector<PipelinePass>(int rank)>& passes_of, Collective* group,
                             Allocate allocate, Clock& clock)
    : shape_(shape),
      group_(group),
      rank_(group != nullptr ? group->rank() : 0),
      allocate_(std::move(allocate)),
      clock_(clock) {
  for (const int sender : {(rank_ + 1) % shape.ranks, (rank_ + shape.ranks - 1) % shape.ranks}) {
    if (sender == rank_ || inboxes_.contains(sender)) continue;
    inboxes_[sender].expected = MessagesBetween(shape, passes_of(sender), sender, rank_);
  }
}

int StageMessages::SenderOf(const PipelineMessage& message) const {
  return (message.stage + shape_.ranks + (message.is_gradient ? 1 : -1)) % shape_.ranks;
}

void StageMessages::Send(const PipelineMessage& message, at::Tensor tensor) {
  if (RankOf(message) == rank_) {
    own_.push_back({message, std::move(tensor), nullptr});
  } else {
    sends_.push_back(group_->StartSend(tensor, RankOf(message)));
  }
}

void StageMessages::PostNext(int sender, Inbox& inbox) {
  const PipelineMessage& message = inbox.expected.at(inbox.posted++);
  at::Tensor tensor = allocate_(message);
  auto operation = group_->StartReceive(tensor, sender);
  inbox.arrivals.push_back({message, std::move(tensor), std::move(operation)});
}

at::Tensor StageMessages::Receive(const PipelineMessage& message) {
  const int sender = SenderOf(message);
  std::deque<Arrival>* arrivals = &own_;
  if (sender != rank_) {
    Inbox& inbox = inboxes_.at(sender);
    arrivals = &inbox.arrivals;
    while (std::ranges::find(*arrivals, message, &Arrival::message) == arrivals->end()) PostNext(sender, inbox);
    // One more, so that it arrives while this rank computes.
    if (arrivals->back().message == message && inbox.posted < inbox.expected.size()) PostNext(sender, inbox);
  }
  const auto found = std::ranges::find(*arrivals, message, &Arrival::message);
  TORCH_CHECK(found != arrivals->end(), "no stage sent micro-batch ", message.micro_batch, " to stage ", message.stage);
  if (found->operation) Await(*found->operation);
  at::Tensor tensor = std::move(found->tensor);
  arrivals->erase(found);
  return tensor;
}

void StageMessages::WaitForSends(std::size_t most_under_way) {
  for (; sends_.size() > most_under_way; sends_.pop_front()) Await(*sends_.front());
}

void StageMessages::Await(Collective::Pending& operation) {
  const TimePoint start = clock_.Now();
  const Status done = operation.Wait();
  waited_ += clock_.Now() - start;
  ThrowIfFailed(done);
}

}  // namespace millrace::engine
