#include "millrace/collectives/rendezvous/rank_store.h"

#include <cstring>
#include <utility>

#include "millrace/collectives/rendezvous/store_protocol.h"

namespace millrace::collectives {
namespace {

constexpr std::string_view kLost = "the store of rank 0";

}  // namespace

Result<RankStore> RankStore::Connect(const SocketAddress& at, const RankKey& key, TimePoint deadline) {
  auto fd = ConnectProved(at, key, kStoreRequest, NobodyListens::kIsAwaited, deadline, {});
  if (!fd) return Fail(fd.error().Context(std::string(kLost)));
  return RankStore(*std::move(fd));
}

Status RankStore::Set(std::string_view key, std::string_view text, TimePoint deadline) {
  if (text.size() > kMostStoreText) {
    return Fail(Code::kInvalidArgument, "{}: a text of {} bytes; at most {} are stored", kLost, text.size(),
                kMostStoreText);
  }
  const StoreHead head{
      .order = StoreOrder::kSet, .size = static_cast<std::uint16_t>(text.size()), .key = Sha256(AsBytes(key))};
  std::string message(reinterpret_cast<const char*>(&head), sizeof head);
  message += text;
  const Status sent = SendAll(fd_.get(), AsBytes(message), deadline, {});
  if (!sent) return Fail(sent.error().Context(std::string(kLost)));
  return {};
}

Result<std::string> RankStore::Get(std::string_view key, TimePoint deadline) {
  const StoreHead head{.order = StoreOrder::kGet, .key = Sha256(AsBytes(key))};
  std::uint16_t size = 0;
  std::string text;
  const auto exchange = [&]() -> Status {
    MR_TRY(SendAll(fd_.get(), std::as_bytes(std::span(&head, 1)), deadline, {}));
    MR_TRY(ReceiveAll(fd_.get(), std::as_writable_bytes(std::span(&size, 1)), deadline, {}));
    if (size > kMostStoreText) return Fail(Code::kInternal, "it answers with {} bytes", size);
    text.resize(size);
    return ReceiveAll(fd_.get(), AsWritableBytes(text), deadline, {});
  };
  const Status done = exchange();
  if (!done) return Fail(done.error().Context(std::string(kLost)));
  return text;
}

}  // namespace millrace::collectives
