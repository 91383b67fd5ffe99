// Any bytes are refused, or give frames that each read the same twice. The first byte picks the format.
#include <cstdlib>
#include <memory>
#include <vector>

#include "millrace/data/arrow/ipc_content.h"
#include "millrace/data/arrow/parquet_content.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  if (size < 2) return 0;
  auto store = object::MakeMemoryStore({.inline_completions = true});
  ByteSpan bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (!object::Put(*store, "o", bytes)) std::abort();
  auto info = object::Head(*store, "o");
  data::DataObject object{store, **info, "o"};
  auto content = data[0] % 2 == 0 ? data::arrow_format::MakeIpcContent(std::move(object), {})
                                  : data::arrow_format::MakeParquetContent(std::move(object), {});
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
