#include "millrace/train/tracing/clock_offsets.h"

#include <fmt/format.h>

#include <array>

namespace millrace::train {
namespace {

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

}  // namespace millrace::train
