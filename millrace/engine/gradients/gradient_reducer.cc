#include "millrace/engine/gradients/gradient_reducer.h"

#include <algorithm>

namespace millrace::engine {

GradientReducer::GradientReducer(ParameterBuffer& parameters, Collective& group, std::int64_t bucket_bytes)
    : parameters_(parameters), group_(group), bucket_of_(parameters.parameters().size()) {
  const std::int64_t most = std::max<std::int64_t>(1, bucket_bytes / static_cast<std::int64_t>(sizeof(float)));
  std::int64_t end = parameters.size();
  for (std::size_t i = bucket_of_.size(); i-- > 0;) {
    const NamedParameter& parameter = parameters.parameters()[i];
    if (buckets_.empty() || end - parameter.begin > most) {
      // The bucket before this one keeps at least one parameter, however large.
      end = buckets_.empty() ? parameters.size() : buckets_.back().begin;
      buckets_.push_back({.begin = parameter.begin, .end = end});
    }
    buckets_.back().begin = parameter.begin;
    buckets_.back().uses += parameter.uses;
    bucket_of_[i] = buckets_.size() - 1;
  }
}

GradientReducer::~GradientReducer() { parameters_.on_gradient = nullptr; }

void GradientReducer::Arm() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.uses;
  started_ = 0;
  parameters_.on_gradient = [this](std::int64_t begin, std::int64_t end) { OnGradient(begin, end); };
}

void GradientReducer::OnGradient(std::int64_t begin, std::int64_t end) {
  const auto& all = parameters_.parameters();
  const auto first = std::ranges::lower_bound(all, begin, {}, &NamedParameter::begin);
  for (auto it = first; it != all.end() && it->begin < end; ++it) --buckets_[bucket_of_[it - all.begin()]].missing;
  StartComplete();
}

void GradientReducer::StartComplete() {
  while (started_ < buckets_.size() && buckets_[started_].missing <= 0) {
    const Bucket& bucket = buckets_[started_++];
    pending_.push_back(
        group_.StartAllReduce(parameters_.gradients().narrow(0, bucket.begin, bucket.end - bucket.begin)));
  }
}

Result<Duration> GradientReducer::Finish() {
  parameters_.on_gradient = nullptr;
  for (Bucket& bucket : buckets_) bucket.missing = 0;  // a parameter that the pass did not reach adds nothing
  const auto start = std::chrono::steady_clock::now();
  StartComplete();
  Status outcome;
  for (const auto& pending : std::exchange(pending_, {})) {
    if (Status done = pending->Wait(); !done && outcome) outcome = std::move(done);
  }
  if (!outcome) return Fail(outcome.error());
  return std::chrono::steady_clock::now() - start;
}

}  // namespace millrace::engine
