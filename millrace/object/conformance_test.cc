#include "millrace/object/conformance.h"

#include "millrace/object/memory/memory_store.h"

namespace millrace::object {
namespace {

ConformanceSubject Memory(std::string name, bool inline_completions, std::uint64_t min_part) {
  return {.name = std::move(name), .make = [=]() -> Result<std::shared_ptr<Store>> {
            return MakeMemoryStore({.limits = {.min_part = min_part}, .inline_completions = inline_completions});
          }};
}

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance,
                         testing::Values(Memory("memory_threaded", false, 5 * kMiB),
                                         Memory("memory_inline", true, 1000)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace::object
