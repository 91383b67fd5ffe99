// Documents, ranges and fault rules that clients and users send to the S3 endpoint.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "millrace/s3d/fault.h"
#include "millrace/s3d/operations/conditions.h"
#include "millrace/s3d/operations/documents.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::s3d;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto request = ParseDeleteRequest(text); request && request->items.empty()) std::abort();
  if (auto parts = ParseCompleteRequest(text); parts && parts->empty()) std::abort();
  (void)FaultPlan::Parse(text);
  for (std::uint64_t length : {0ull, 1ull, 1000ull, ~0ull >> 1}) {
    auto range = ParseRange(text, length);
    if (!range || !*range) continue;
    if ((*range)->length == 0 || (*range)->offset >= length || (*range)->length > length - (*range)->offset)
      std::abort();
  }
  return 0;
}
