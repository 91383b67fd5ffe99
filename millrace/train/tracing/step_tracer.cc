#include "millrace/train/tracing/step_tracer.h"

#include <unistd.h>

#include <array>
#include <optional>
#include <string>

#include "millrace/object/blocking.h"
#include "millrace/trace/trace_file.h"

namespace millrace::train {
namespace {

constexpr auto kStoreTimeout = std::chrono::minutes(2);  // for the file of a rank, some megabytes

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace

Result<std::unique_ptr<StepTracer>> StepTracer::Open(object::Connection& connection, engine::Collective& world,
                                                     const ProfileOptions& options, const Clock& clock, Logger log) {
  object::Location folder = MR_TRY(object::Locate(connection, options.url));
  if (!folder.key.empty() && !folder.key.ends_with('/')) folder.key += '/';
  std::vector<ClockOffset> clocks = MR_TRY(MeasureClockOffsets(world, clock));
  std::unique_ptr<StepTracer> tracer(
      new StepTracer(std::move(folder), world, options, std::move(clocks), clock, std::move(log)));
  tracer->recorder_.NameThread("training");
  return tracer;
}

void StepTracer::BeforeStep(std::uint64_t step) {
  if (written_ || step < options_.first_step || step > options_.last_step) return;
  started_ = true;
  recorder_.SetOn(true);
}

std::function<void(std::uint64_t, const data::StageTrace&)> StepTracer::OnMade() {
  return [this](std::uint64_t number, const data::StageTrace& trace) {
    if (!recorder_.is_on()) return;
    const TimePoint end = clock_.Now();
    std::optional<TimePoint> begin;
    trace.ForEach(end, [&](data::LoadStage stage, TimePoint from, TimePoint to) {
      if (!begin) begin = from;
      recorder_.Add(std::string(data::LoadStageName(stage)), trace::Category::kData, from, to);
    });
    if (begin) recorder_.Add("make a micro-batch", trace::Category::kData, *begin, end, {{"number", number}});
  };
}

void StepTracer::NoteCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  if (!saved) return;
  const TimePoint now = clock_.Now();
  const bool local = saved->tier == checkpoint::CheckpointTier::kLocal;
  recorder_.Add(local ? "write a checkpoint to the disk" : "upload a checkpoint", trace::Category::kCheckpoint,
                now - saved->total, now, {{"step", saved->step}, {"bytes", saved->bytes}});
}

bool StepTracer::IsDue(std::uint64_t step, bool ending) const {
  return started_ && !written_ && (step >= options_.last_step || ending);
}

Status StepTracer::Write(const trace::OtherSpans& others) {
  recorder_.SetOn(false);
  written_ = true;
  if (const Status put = PutOwn(others); !put)
    log_.Warning("the trace of this rank was not written", {{"error", put.error()}});
  MR_TRY(world_.Barrier());
  if (world_.rank() != 0) return {};
  if (const Status joined = Join(); !joined) log_.Warning("the traces were not joined", {{"error", joined.error()}});
  return {};
}

Status StepTracer::Put(const std::string& key, const std::string& text) const {
  const std::string packed = MR_TRY(trace::Compress(text));
  const object::Call call{.deadline = Deadline::After(clock_, kStoreTimeout)};
  const auto put =
      object::Put(*folder_.store, folder_.key + key, AsBytes(packed), {.content_type = "application/gzip"}, call);
  if (!put) return Fail(put.error());
  return {};
}

Status StepTracer::PutOwn(const trace::OtherSpans& others) {
  const int rank = world_.rank();
  const ClockOffset& offset = clocks_[static_cast<std::size_t>(rank)];
  if (const std::uint64_t dropped = recorder_.dropped() + others.dropped; dropped > 0) {
    log_.Warning("the trace is full: trace fewer steps", {{"dropped", dropped}});
  }
  return Put(trace::RankTraceKey(options_.first_step, options_.last_step, rank),
             trace::RankTrace({.rank = rank,
                               .ranks = world_.size(),
                               .job = options_.job,
                               .node = HostName(),
                               .first_step = options_.first_step,
                               .last_step = options_.last_step,
                               .clock_offset = offset.offset,
                               .clock_error = offset.error},
                              recorder_, others));
}

Status StepTracer::Join() {
  std::vector<std::string> traces;
  const object::Call call{.deadline = Deadline::After(clock_, kStoreTimeout)};
  for (int rank = 0; rank < world_.size(); ++rank) {
    const std::string key = trace::RankTraceKey(options_.first_step, options_.last_step, rank);
    const auto found = MR_TRY(object::GetAll(*folder_.store, folder_.key + key, trace::kMostTraceBytes, call));
    if (!found) continue;  // its rank has warned
    traces.push_back(MR_TRY(trace::Decompress(found->bytes, trace::kMostTraceBytes)));
  }
  const std::string joined = MR_TRY(trace::JoinTraces(traces));
  const std::string key = trace::TraceKey(options_.first_step, options_.last_step);
  MR_TRY(Put(key, joined));
  log_.Info("the trace is written", {{"key", folder_.key + key}});
  return {};
}

}  // namespace millrace::train
