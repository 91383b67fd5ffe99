// The calls of a store in waiting form: each blocks until the call is complete. Never call them from a completion.
#pragma once

#include "millrace/object/store.h"

namespace millrace::object {

Result<std::optional<ObjectInfo>> Head(ReadStore& store, std::string key, Call call = {});
Result<std::optional<GetResult>> Get(ReadStore& store, std::string key, GetOptions options, MutableByteSpan into,
                                     Call call = {});
Result<std::optional<GetResult>> GetTo(ReadStore& store, std::string key, GetOptions options, std::uint64_t limit,
                                       Sink& sink, Call call = {});
struct Content {
  std::string bytes;
  ObjectInfo info;
};
/// The whole object; nullopt if it does not exist. If the object changes between Head and Get, reads it again.
/// Errors: kResourceExhausted if it is longer than `max_bytes`.
Result<std::optional<Content>> GetAll(ReadStore& store, std::string key, std::uint64_t max_bytes, Call call = {});
Result<ListPage> List(ReadStore& store, ListRequest request, Call call = {});
Result<VersionsPage> ListVersions(ReadStore& store, VersionsRequest request, Call call = {});
/// Calls `visit` for each page, until the last one or until it returns false.
Status ListAll(ReadStore& store, ListRequest request, const std::function<bool(const ListPage&)>& visit,
               Call call = {});
Result<PutResult> Put(Store& store, std::string key, Payload body, PutOptions options = {}, Call call = {});
Status Delete(Store& store, std::string key, Call call = {});
Result<std::vector<DeleteFailure>> DeleteMany(Store& store, std::vector<std::string> keys, Call call = {});
Result<PutResult> Copy(Store& store, std::string source, std::string destination, CopyOptions options = {},
                       Call call = {});
Result<std::string> CreateMultipart(Store& store, std::string key, PutOptions options = {}, Call call = {});
Result<PartInfo> UploadPart(Store& store, std::string key, std::string upload_id, int number, Payload body,
                            Call call = {});
Result<PartInfo> CopyPart(Store& store, std::string key, std::string upload_id, int number, std::string source,
                          ByteRange range, CopyOptions options = {}, Call call = {});
Result<PutResult> CompleteMultipart(Store& store, std::string key, std::string upload_id, std::vector<PartInfo> parts,
                                    PutOptions options = {}, Call call = {});
Status AbortMultipart(Store& store, std::string key, std::string upload_id, Call call = {});
Result<std::vector<PartInfo>> ListParts(Store& store, std::string key, std::string upload_id, Call call = {});
Result<std::vector<UploadInfo>> ListUploads(Store& store, std::string prefix, Call call = {});

}  // namespace millrace::object
