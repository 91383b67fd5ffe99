// A sync of a million keys: neither its memory nor the wait for its first copy grows with the number.
#include <gtest/gtest.h>

#include <fstream>

#include "millrace/object/store.h"
#include "millrace/transfer/plan/sync_plan.h"

namespace millrace::transfer {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kKeys = 50'000;
#else
constexpr std::uint64_t kKeys = 1'000'000;
#endif
constexpr std::uint64_t kExtra = 10;  ///< each side lacks one of `kExtra` keys, and each another one

/// Lists made-up keys, a page when it is asked for; knows nothing else.
class MadeUpStore final : public object::Store {
 public:
  /// `omit`: the residue modulo kExtra of the keys that are not there.
  explicit MadeUpStore(std::uint64_t omit) : omit_(omit) {}
  std::string Describe() const override { return "made-up:"; }
  void List(object::ListRequest request, object::Call, object::Done<object::ListPage> done) override {
    object::ListPage page;
    std::uint64_t at = request.continuation.empty() ? 0 : std::stoull(request.continuation);
    for (; page.objects.size() < 1000 && at < kKeys; ++at) {
      if (at % kExtra == omit_) continue;
      page.objects.push_back({.key = fmt::format("data/shard-{:04}/sample-{:08}.jpg", at / 1000, at),
                              .size = at,
                              .etag = "0123456789abcdef0123456789abcdef"});
    }
    if (at < kKeys) page.continuation = std::to_string(at);
    ++pages;
    done(std::move(page));
  }
  template <class T>
  static void Refuse(object::Done<T>& done) {
    done(Fail(Code::kUnsupported, "a made-up store only lists"));
  }
  void Head(std::string, object::Call, object::Done<std::optional<object::ObjectInfo>> done) override { Refuse(done); }
  void Get(std::string, object::GetOptions, MutableByteSpan, object::Call,
           object::Done<std::optional<object::GetResult>> done) override {
    Refuse(done);
  }
  void Put(std::string, object::Payload, object::PutOptions, object::Call,
           object::Done<object::PutResult> done) override {
    Refuse(done);
  }
  void Delete(std::string, object::Call, object::Done<void> done) override { Refuse(done); }
  void DeleteMany(std::vector<std::string>, object::Call,
                  object::Done<std::vector<object::DeleteFailure>> done) override {
    Refuse(done);
  }
  void Copy(std::string, std::string, object::CopyOptions, object::Call,
            object::Done<object::PutResult> done) override {
    Refuse(done);
  }
  void CreateMultipart(std::string, object::PutOptions, object::Call, object::Done<std::string> done) override {
    Refuse(done);
  }
  void UploadPart(std::string, std::string, int, object::Payload, object::Call,
                  object::Done<object::PartInfo> done) override {
    Refuse(done);
  }
  void CopyPart(std::string, std::string, int, std::string, object::ByteRange, object::CopyOptions, object::Call,
                object::Done<object::PartInfo> done) override {
    Refuse(done);
  }
  void CompleteMultipart(std::string, std::string, std::vector<object::PartInfo>, object::PutOptions, object::Call,
                         object::Done<object::PutResult> done) override {
    Refuse(done);
  }
  void AbortMultipart(std::string, std::string, object::Call, object::Done<void> done) override { Refuse(done); }
  void ListParts(std::string, std::string, object::Call, object::Done<std::vector<object::PartInfo>> done) override {
    Refuse(done);
  }
  void ListUploads(std::string, object::Call, object::Done<std::vector<object::UploadInfo>> done) override {
    Refuse(done);
  }
  Result<std::string> Presign(std::string_view, std::string_view, Duration) override {
    return Fail(Code::kUnsupported, "a made-up store only lists");
  }

  int pages = 0;

 private:
  const std::uint64_t omit_;
};

/// Resident memory now, in bytes.
std::uint64_t Resident() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4096;
}

TEST(SyncScale, MemoryAndFirstCopyDoNotGrowWithTheNumberOfKeys) {
  MadeUpStore from(3), to(7);
  auto source = ListStore(from, "data/", 5, {}), destination = ListStore(to, "data/", 5, {});
  std::uint64_t copies = 0, deletions = 0, same = 0, peak = 0, before = Resident();
  int pages_at_first_copy = 0;
  Status planned = PlanSync(*source, *destination, {.delete_extra = true}, [&](SyncAction action) -> Status {
    if (action.operation == SyncAction::Operation::kCopy && copies++ == 0) pages_at_first_copy = from.pages + to.pages;
    deletions += action.operation == SyncAction::Operation::kDelete;
    same += action.operation == SyncAction::Operation::kSame;
    if ((copies + deletions) % 1000 == 0) peak = std::max(peak, Resident());
    return {};
  });
  ASSERT_TRUE(planned) << planned.error().ToString();
  EXPECT_EQ(copies, kKeys / kExtra);
  EXPECT_EQ(deletions, kKeys / kExtra);
  EXPECT_EQ(same, kKeys / kExtra * (kExtra - 2));
  EXPECT_LE(pages_at_first_copy, 4) << "listing goes on while copies are under way";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their own memory is many times the program's
  EXPECT_LT(peak - std::min(peak, before), 50 * kMiB);
#endif
}

}  // namespace
}  // namespace millrace::transfer
