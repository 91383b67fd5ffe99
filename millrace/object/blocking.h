// The calls of a store in waiting form: each blocks until the call is complete. Never call them from a completion.
#pragma once

#include "millrace/object/store.h"

namespace millrace::object {

/// The metadata of an object; nullopt if it does not exist.
Result<std::optional<ObjectInfo>> Head(ReadStore& store, std::string key, Call call = {});
/// The metadata of one version of an object; nullopt if it does not exist.
Result<std::optional<ObjectInfo>> HeadVersion(ReadStore& store, std::string key, std::string version, Call call = {});
/// The bytes of an object, or a range of them, in memory of the caller; nullopt if it does not exist.
Result<std::optional<GetResult>> Get(ReadStore& store, std::string key, GetOptions options, MutableByteSpan into,
                                     Call call = {});
/// Passes the bytes of an object to a sink; nullopt if it does not exist.
Result<std::optional<GetResult>> GetTo(ReadStore& store, std::string key, GetOptions options, std::uint64_t limit,
                                       Sink& sink, Call call = {});
/// A whole object in memory.
struct Content {
  std::string bytes;  ///< its content
  ObjectInfo info;    ///< of the version that was read
};
/// The whole object; nullopt if it does not exist. If the object changes between Head and Get, reads it again.
/// Errors: kResourceExhausted if it is longer than `max_bytes`.
Result<std::optional<Content>> GetAll(ReadStore& store, std::string key, std::uint64_t max_bytes, Call call = {});
/// One page of a listing.
Result<ListPage> List(ReadStore& store, ListRequest request, Call call = {});
/// One page of a listing of all versions.
Result<VersionsPage> ListVersions(ReadStore& store, VersionsRequest request, Call call = {});
/// Calls `visit` for each page, until the last one or until it returns false.
Status ListAll(ReadStore& store, ListRequest request, const std::function<bool(const ListPage&)>& visit,
               Call call = {});
/// Writes an object.
Result<PutResult> Put(Store& store, std::string key, Payload body, PutOptions options = {}, Call call = {});
/// Removes an object. Succeeds if there is none.
Status Delete(Store& store, std::string key, Call call = {});
/// Removes objects. Returns those that could not be removed.
Result<std::vector<DeleteFailure>> DeleteMany(Store& store, std::vector<std::string> keys, Call call = {});
/// Removes versions for good. Returns those that could not be removed.
Result<std::vector<DeleteFailure>> DeleteVersions(Store& store, std::vector<VersionName> versions, Call call = {});
/// Asks for a readable copy of an archived object. Returns false if that is on its way already.
Result<bool> Restore(Store& store, std::string key, RestoreOptions options, Call call = {});
/// Copies an object within the store.
Result<PutResult> Copy(Store& store, std::string source, std::string destination, CopyOptions options = {},
                       Call call = {});
/// Begins an upload in parts. Returns its id.
Result<std::string> CreateMultipart(Store& store, std::string key, PutOptions options = {}, Call call = {});
/// Uploads part `number`, from 1.
Result<PartInfo> UploadPart(Store& store, std::string key, std::string upload_id, int number, Payload body,
                            Call call = {});
/// Makes a part of bytes of an object, on the server.
Result<PartInfo> CopyPart(Store& store, std::string key, std::string upload_id, int number, std::string source,
                          ByteRange range, CopyOptions options = {}, Call call = {});
/// Makes the object of its parts.
Result<PutResult> CompleteMultipart(Store& store, std::string key, std::string upload_id, std::vector<PartInfo> parts,
                                    PutOptions options = {}, Call call = {});
/// Drops an upload and its parts.
Status AbortMultipart(Store& store, std::string key, std::string upload_id, Call call = {});
/// The parts of an upload, in order of their numbers.
Result<std::vector<PartInfo>> ListParts(Store& store, std::string key, std::string upload_id, Call call = {});
/// The uploads that are neither completed nor aborted.
Result<std::vector<UploadInfo>> ListUploads(Store& store, std::string prefix, Call call = {});

}  // namespace millrace::object
