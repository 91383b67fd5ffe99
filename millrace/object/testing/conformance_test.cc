#include "millrace/object/testing/conformance.h"

#include "millrace/base/files/files.h"
#include "millrace/object/local/file_store.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::object {
namespace {

ConformanceSubject Memory(std::string name, bool inline_completions, std::uint64_t min_part) {
  return {.name = std::move(name), .make = [=]() -> Result<std::shared_ptr<Store>> {
            return MakeMemoryStore({.limits = {.min_part = min_part}, .inline_completions = inline_completions});
          }};
}

ConformanceSubject File(bool prune_folders) {
  return {.name = prune_folders ? "file" : "file_keeping_folders",
          .make = [=]() -> Result<std::shared_ptr<Store>> {
            // One allocation owns folder and store; members go in reverse, the store before its folder.
            struct Owner {
              TempDir folder;
              std::shared_ptr<Store> store;
            };
            auto owner = std::make_shared<Owner>(MR_TRY(TempDir::Create()));
            owner->store = MR_TRY(OpenFileStore(
                {.root = owner->folder.path(), .prune_folders = prune_folders, .durable = false, .threads = 4}));
            return std::shared_ptr<Store>(owner, owner->store.get());
          },
          .lacks = {Capability::kObjectBesideFolder}};
}

ConformanceSubject Faultless() {
  return {.name = "fault", .make = []() -> Result<std::shared_ptr<Store>> {
            return FaultStore::Create(MakeMemoryStore({.limits = {.min_part = 1000}}));
          }};
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance,
                         testing::Values(Memory("memory_threaded", false, 5 * kMiB),
                                         Memory("memory_inline", true, 1000), Faultless(), File(true), File(false)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace::object
