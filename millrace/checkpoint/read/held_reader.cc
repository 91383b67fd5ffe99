#include "millrace/checkpoint/read/held_reader.h"

#include <utility>

#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

Result<HeldReader> OpenHeld(object::Connection& connection, std::string_view url, std::optional<std::uint64_t> step,
                            const Logger& log, object::Call call) {
  const object::Location root = MR_TRY(object::Locate(connection, url));
  for (int tries = 3;; --tries) {
    auto reader = MR_TRY(Reader::Open(connection, url, step, call));
    auto hold = CheckpointLease::Acquire(root, reader->manifest().step, call);
    if (hold) return HeldReader{std::move(reader), *std::move(hold)};
    if (hold.error().code() == Code::kCancelled) return Fail(hold.error());
    const bool going = hold.error().code() == Code::kNotFound || hold.error().code() == Code::kBusy;
    if (going && tries > 1) continue;
    log.Info("reading without a hold; garbage collection may remove the checkpoint meanwhile",
             {{"checkpoint", reader->name()}, {"error", hold.error()}});
    return HeldReader{std::move(reader), nullptr};
  }
}

}  // namespace millrace::checkpoint
