// The cases about reading of the conformance suite, over a hub that is filled as they write.
#include <array>

#include "millrace/object/hf/hub_test_base.h"
#include "millrace/object/rules.h"
#include "millrace/object/testing/conformance.h"

namespace millrace::object {
namespace {

/// Put and Delete make a commit of the hub. Reads are a HubStore's, which is opened anew after each commit. The other
/// writes are not used by the cases that run here.
class FilledHub final : public Store {
 public:
  FilledHub() : server_(*hf::testing::HubServer::Start({.page_files = 7})) { Commit(); }

  std::string Describe() const override { return "filled hub"; }
  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override {
    store_->Head(std::move(key), std::move(call), std::move(done));
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    store_->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  }
  void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override {
    store_->GetTo(std::move(key), std::move(options), limit, sink, std::move(call), std::move(done));
  }
  void List(ListRequest request, Call call, Done<ListPage> done) override {
    store_->List(std::move(request), std::move(call), std::move(done));
  }

  void Put(std::string key, Payload body, PutOptions, Call call, Done<PutResult> done) override {
    if (Status good = Check(key, call); !good) return done(Fail(good.error()));
    if (!hf::IsTreePath(key)) return done(Fail(Code::kInvalidArgument, "no file of git: {}", key));
    files_.insert_or_assign(key, std::string(AsText(body)));
    Commit();
    auto head = object::Head(*store_, key);
    if (!head || !*head) return done(Fail(Code::kInternal, "the hub has no {}", key));
    done(PutResult{.etag = (*head)->etag});
  }
  void Delete(std::string key, Call call, Done<void> done) override {
    if (Status good = Check(key, call); !good) return done(Fail(good.error()));
    files_.erase(key);
    Commit();
    done({});
  }
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override {
    store_->DeleteMany(std::move(keys), std::move(call), std::move(done));
  }
  void Copy(std::string source, std::string destination, CopyOptions options, Call call,
            Done<PutResult> done) override {
    store_->Copy(std::move(source), std::move(destination), std::move(options), std::move(call), std::move(done));
  }
  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> done) override {
    store_->CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(done));
  }
  void UploadPart(std::string key, std::string id, int number, Payload body, Call call, Done<PartInfo> done) override {
    store_->UploadPart(std::move(key), std::move(id), number, body, std::move(call), std::move(done));
  }
  void CopyPart(std::string key, std::string id, int number, std::string source, ByteRange range, CopyOptions options,
                Call call, Done<PartInfo> done) override {
    store_->CopyPart(std::move(key), std::move(id), number, std::move(source), range, std::move(options),
                     std::move(call), std::move(done));
  }
  void CompleteMultipart(std::string key, std::string id, std::vector<PartInfo> parts, PutOptions options, Call call,
                         Done<PutResult> done) override {
    store_->CompleteMultipart(std::move(key), std::move(id), std::move(parts), std::move(options), std::move(call),
                              std::move(done));
  }
  void AbortMultipart(std::string key, std::string id, Call call, Done<void> done) override {
    store_->AbortMultipart(std::move(key), std::move(id), std::move(call), std::move(done));
  }
  void ListParts(std::string key, std::string id, Call call, Done<std::vector<PartInfo>> done) override {
    store_->ListParts(std::move(key), std::move(id), std::move(call), std::move(done));
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    store_->ListUploads(std::move(prefix), std::move(call), std::move(done));
  }
  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override {
    return store_->Presign(method, key, valid_for);
  }

 private:
  Status Check(const std::string& key, const Call& call) {
    MR_TRY(CheckKey(key));
    return CheckCall(call, SystemClock());
  }
  void Commit() {
    server_->Commit("models/o/m", files_);
    store_ = std::make_unique<hf::HubStore>(client_, hf::Repository::Of("o/m"));
  }

  std::unique_ptr<hf::testing::HubServer> server_;
  FakeClock clock_;
  std::shared_ptr<hf::HubClient> client_ = hf::testing::ConnectTo(*server_, "", clock_);
  hf::testing::FileContents files_;
  std::unique_ptr<Store> store_;
};

/// The cases of the suite that are about writes, which the hub does not take.
bool IsAboutReading(std::string_view name) {
  constexpr std::array kCases = {"AbsenceIsAValue",
                                 "PutThenReadGivesBytesAndInfo",
                                 "OverwriteChangesTheETag",
                                 "RangesAtAndBeyondTheEnd",
                                 "GetRefusesABufferThatIsTooSmall",
                                 "ASinkGetsTheSameBytesInOrder",
                                 "GetIfMatchSeesOneVersion",
                                 "KeysThatCannotBe",
                                 "OddKeysKeepTheirNames",
                                 "ListingIsInByteOrder",
                                 "ListingWithPrefixAndDelimiter",
                                 "ListingStartsAfter",
                                 "PagingYieldsEachItemOnce",
                                 "ACancelledCallEndsAsCancelled"};
  return std::ranges::any_of(kCases, [&](std::string_view one) { return name.starts_with(one); });
}

Result<std::shared_ptr<Store>> MakeFilledHub() {
  if (!IsAboutReading(::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    return Fail(Code::kUnsupported, "the hub is only read from");
  }
  return std::make_shared<FilledHub>();
}

INSTANTIATE_TEST_SUITE_P(Hub, StoreConformance,
                         ::testing::Values(ConformanceSubject{
                             "hub", MakeFilledHub, {Capability::kFreeSegments, Capability::kObjectBesideFolder}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace::object
