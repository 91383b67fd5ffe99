// Any bytes are refused, or give frames that each read the same twice.
#include <cstdlib>
#include <memory>
#include <vector>

#include "millrace/data/hdf5/sample_shard.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  auto store = object::MakeMemoryStore({.inline_completions = true});
  if (!object::Put(*store, "o", std::as_bytes(std::span(data, size)))) std::abort();
  auto info = object::Head(*store, "o");
  auto content = data::MakeSampleShard({store, **info, "o"});
  std::vector<data::Frame> frames;
  (void)content->FindFrames(
      [&](data::Frame frame, std::optional<Buffer>) -> Status {
        frames.push_back(std::move(frame));
        return {};
      },
      {});
  for (const data::Frame& frame : frames) {
    auto once = content->ReadFrame(frame, {}), twice = content->ReadFrame(frame, {});
    if (once.has_value() != twice.has_value()) std::abort();
    if (once && AsText(*once) != AsText(*twice)) std::abort();
  }
  return 0;
}
