// Any bytes in any format are either refused or give the same lines when a frame is read as when it was found. The
// first byte picks layout and compression.
#include <cstdlib>
#include <string>
#include <vector>

#include "millrace/data/formats/decoded_content.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::data;
  if (size < 2) return 0;
  DataFormat format{.layout = static_cast<RecordLayout>(data[0] % 5),
                    .compression = static_cast<Compression>(data[0] / 5 % 3)};
  auto store = object::MakeMemoryStore();
  object::Put(*store, "o", ByteSpan(reinterpret_cast<const std::byte*>(data) + 1, size - 1)).value();
  auto content = MakeDecodedContent({.store = store, .info = *object::Head(*store, "o").value(), .url = "o"}, format);
  auto found = [&](const Frame& frame, const std::optional<Buffer>& lines) -> Status {
    auto again = content->ReadFrame(frame, {});
    if (!again || !lines || AsText(*again) != AsText(*lines) || !AsText(*lines).ends_with('\n')) std::abort();
    return {};
  };
  (void)content->FindFrames(found, {});
  return 0;
}
