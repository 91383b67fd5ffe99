#include "millrace/train/tracing/step_tracer.h"

#include <fmt/format.h>
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

constexpr int kRoundTrips = 16;  // the fastest of them was not delayed by the scheduler

std::int64_t Nanoseconds(const Clock& clock) { return clock.Now().time_since_epoch().count(); }

/// Asks the other rank of `pair` for its time. Returns its offset by the fastest round trip.
Result<ClockOffset> AskClock(engine::Collective& pair, const Clock& clock) {
  const at::Tensor time = at::zeros({1}, at::kLong);
  ClockOffset best{.error = Duration::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const std::int64_t before = Nanoseconds(clock);
    MR_TRY(pair.Send(at::zeros({1}, at::kLong), 1));
    MR_TRY(pair.Receive(time, 1));
    const std::int64_t after = Nanoseconds(clock), trip = after - before;
    if (Duration(trip / 2) >= best.error) continue;
    best = {.offset = Duration(time.item<std::int64_t>() - before - trip / 2), .error = Duration(trip / 2)};
  }
  if (best.offset <= best.error && -best.offset <= best.error) best.offset = {};
  return best;
}

Status AnswerClock(engine::Collective& pair, const Clock& clock) {
  const at::Tensor question = at::zeros({1}, at::kLong);
  for (int i = 0; i < kRoundTrips; ++i) {
    MR_TRY(pair.Receive(question, 0));
    MR_TRY(pair.Send(at::full({1}, Nanoseconds(clock), at::kLong), 0));
  }
  return {};
}

}  // namespace

Result<std::vector<ClockOffset>> MeasureClockOffsets(engine::Collective& world, const Clock& clock) {
  const at::Tensor all = at::zeros({world.size(), 2}, at::kLong);
  for (int rank = 1; rank < world.size(); ++rank) {
    if (world.rank() != 0 && world.rank() != rank) continue;
    // A group of their own: its threads end with it.
    const auto pair = MR_TRY(world.Split(fmt::format("clock-{}", rank), std::array{0, rank}));
    if (world.rank() == rank) {
      MR_TRY(AnswerClock(*pair, clock));
      continue;
    }
    const ClockOffset found = MR_TRY(AskClock(*pair, clock));
    all[rank][0] = static_cast<std::int64_t>(found.offset.count());
    all[rank][1] = static_cast<std::int64_t>(found.error.count());
  }
  MR_TRY(world.Broadcast(all, 0));
  std::vector<ClockOffset> offsets;
  for (int rank = 0; rank < world.size(); ++rank) {
    offsets.push_back(
        {.offset = Duration(all[rank][0].item<std::int64_t>()), .error = Duration(all[rank][1].item<std::int64_t>())});
  }
  return offsets;
}

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
    const auto found = MR_TRY(object::GetAll(*folder_.store, folder_.key + key, trace::kMaxTraceBytes, call));
    if (!found) continue;  // its rank has warned
    traces.push_back(MR_TRY(trace::Decompress(found->bytes, trace::kMaxTraceBytes)));
  }
  const std::string joined = MR_TRY(trace::JoinTraces(traces));
  const std::string key = trace::TraceKey(options_.first_step, options_.last_step);
  MR_TRY(Put(key, joined));
  log_.Info("the trace is written", {{"key", folder_.key + key}});
  return {};
}

void TraceObserver::OnStepBegin(std::uint64_t step) {
  tracer_.BeforeStep(step);
  scope_.emplace(&tracer_.recorder());
}

void TraceObserver::OnStepEnd(std::uint64_t step, bool last) {
  scope_.reset();
  if (!tracer_.IsDue(step, last)) return;
  const HeartbeatScope beating(heartbeat_, step, clock_);
  if (const Status written = tracer_.Write(requests_.spans()); !written) {
    log_.Warning("the trace was not written", {{"error", written.error()}});
  }
}

void TraceObserver::OnEnd(const RunEnd&) { scope_.reset(); }

}  // namespace millrace::train
