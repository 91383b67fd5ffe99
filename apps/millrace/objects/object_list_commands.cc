// ls, du, head.
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

#include <filesystem>

namespace millrace::cli {
namespace {

std::string ReadableTime(WallTime time) {
  std::string text = FormatIso8601(time);  // 2026-01-31T12:00:00.000Z
  return text.substr(0, 10) + " " + text.substr(11, 8);
}

struct ListFlags {
  std::vector<std::string> urls;
  bool recursive = false, human = false, raw = false, all_versions = false, bookkeeping = false, details = false,
       summarize = false;
  ViewFlags view;
  std::string Size(std::uint64_t bytes) const { return human ? FormatBytes(bytes) : std::to_string(bytes); }
};

/// The objects that a listing has printed so far.
struct ListTotals {
  std::uint64_t objects = 0, bytes = 0;
};

void PrintObject(const Context& context, const ListFlags& flags, const object::ObjectInfo& info,
                 const std::string& shown, ListTotals& totals) {
  ++totals.objects;
  totals.bytes += info.size;
  if (context.globals.json) {
    return PrintJsonListing(
        {{"key", info.key}, {"size", info.size}, {"etag", info.etag}, {"modified", FormatIso8601(info.modified)}});
  }
  PrintListing("{} {:>14} {}{}\n", ReadableTime(info.modified), flags.Size(info.size),
               flags.details ? fmt::format("{:<36} ", info.etag) : "", shown);
}

/// Prints the totals in the format of `aws s3 ls --summarize`.
void PrintListTotals(const Context& context, const ListFlags& flags, const ListTotals& totals) {
  if (context.globals.json) {
    return PrintJsonListing({{"event", "summary"}, {"objects", totals.objects}, {"bytes", totals.bytes}});
  }
  PrintListing("\nTotal Objects: {}\n   Total Size: {}\n", totals.objects, flags.Size(totals.bytes));
}

void PrintPrefix(const Context& context, const std::string& prefix, const std::string& shown) {
  if (context.globals.json) return PrintJsonListing({{"prefix", prefix}});
  PrintListing("{:>34} {}\n", "DIR", shown);
}

Result<int> ListBuckets(const Context& context, object::Connection& connection) {
  auto service = MR_TRY(connection.OpenService());
  for (const auto& bucket : MR_TRY(service->ListBuckets({.stop = context.stop}))) {
    if (context.globals.json) {
      PrintJsonListing({{"bucket", bucket.name}, {"created", FormatIso8601(bucket.created)}});
    } else {
      PrintListing("{} s3://{}\n", ReadableTime(bucket.created), bucket.name);
    }
  }
  return kExitOk;
}

/// Objects and folders of one level, by the store's own delimiter.
Status ListLevel(const Context& context, const ListFlags& flags, const ObjectPlace& place, ListTotals& totals,
                 bool& any) {
  std::string prefix = place.key;
  if (place.local() && !prefix.empty() && !prefix.ends_with('/') && std::filesystem::is_directory("/" + prefix)) {
    prefix += '/';
  }
  std::size_t name_from = prefix.rfind('/') + 1;
  auto shows = [&](const std::string& name) { return flags.bookkeeping || !transfer::IsBookkeeping(name); };
  return object::ListAll(*place.store, {.prefix = prefix, .delimiter = "/"},
                         [&](const object::ListPage& page) {
                           auto next = page.common_prefixes.begin();
                           auto print_prefixes_before = [&](const std::string* key) {
                             for (; next != page.common_prefixes.end() && (!key || *next < *key); ++next) {
                               const std::string name = next->substr(name_from);
                               if (shows(name)) PrintPrefix(context, *next, name);
                             }
                           };
                           for (const object::ObjectInfo& info : page.objects) {
                             print_prefixes_before(&info.key);
                             PrintObject(context, flags, info, info.key.substr(name_from), totals);
                           }
                           print_prefixes_before(nullptr);
                           any = any || !page.objects.empty() || !page.common_prefixes.empty();
                           return true;
                         },
                         {.stop = context.stop});
}

void PrintVersion(const Context& context, const ListFlags& flags, const object::VersionInfo& version,
                  const std::string& shown) {
  const object::ObjectInfo& info = version.info;
  if (context.globals.json) {
    Json json = {{"key", info.key},
                 {"version_id", version.id},
                 {"latest", version.latest},
                 {"deleted", version.deletion},
                 {"modified", FormatIso8601(info.modified)}};
    if (!version.deletion) json.update({{"size", info.size}, {"etag", info.etag}});
    return PrintJsonListing(json);
  }
  PrintListing("{} {:>14} {} {}{}\n", ReadableTime(info.modified), version.deletion ? "DELETED" : flags.Size(info.size),
               version.id, shown, version.latest ? " (latest)" : "");
}

/// Every version of what the URL selects; folders by name, unless all beneath them is asked for.
Status ListVersions(const Context& context, object::Connection& connection, const ListFlags& flags,
                    const std::string& text) {
  ObjectPlace place = MR_TRY(OpenPlace(connection, text));
  std::optional<transfer::Glob> glob;
  if (!flags.raw && transfer::HasWildcard(place.key)) glob.emplace(place.key);
  object::VersionsRequest request{.prefix = glob ? glob->literal_prefix() : place.key,
                                  .delimiter = flags.recursive || glob ? "" : "/"};
  const std::size_t name_from = request.prefix.rfind('/') + 1;
  bool any = false;
  do {
    object::VersionsPage page = MR_TRY(object::ListVersions(*place.store, request, {.stop = context.stop}));
    for (const std::string& prefix : page.common_prefixes) PrintPrefix(context, prefix, prefix.substr(name_from));
    for (const object::VersionInfo& version : page.versions) {
      if (glob && !glob->Matches(version.info.key)) continue;
      any = true;
      PrintVersion(context, flags, version, version.info.key.substr(name_from));
    }
    any = any || !page.common_prefixes.empty();
    request.key_marker = std::move(page.next_key);
    request.version_marker = std::move(page.next_version);
  } while (!request.key_marker.empty());
  if (any || place.key.empty()) return {};
  return Fail(Code::kNotFound, "there is nothing at {}; check the URL with `millrace ls`", place.Name());
}

Result<int> List(const Context& context, object::Connection& connection, const ListFlags& flags) {
  std::vector<std::string> urls = flags.urls.empty() ? std::vector<std::string>{"s3://"} : flags.urls;
  ListTotals totals;
  for (const std::string& text : urls) {
    object::Url url = MR_TRY(object::ParseUrl(text));
    if (url.scheme == object::Url::Scheme::kS3 && url.bucket.empty()) {
      MR_TRY(ListBuckets(context, connection));
      continue;
    }
    if (flags.all_versions) {
      MR_TRY(ListVersions(context, connection, flags, text));
      continue;
    }
    ObjectPlace place = MR_TRY(OpenPlace(connection, text, flags.view));
    if (!flags.recursive && (flags.raw || !transfer::HasWildcard(place.key))) {
      bool any = false;
      MR_TRY(ListLevel(context, flags, place, totals, any));
      if (!any && !place.key.empty()) {
        // The bare name of a bucket is a path here.
        const bool may_be_bucket = place.local() && !text.contains('/');
        return Fail(Code::kNotFound, "there is nothing at {}; check the URL{}", place.Name(),
                    may_be_bucket ? fmt::format("; a bucket of this name is s3://{}/", text) : "");
      }
      continue;
    }
    Selection selection = MR_TRY(
        Select(connection, text,
               {.recursive = flags.recursive, .raw = flags.raw, .bookkeeping = flags.bookkeeping, .view = flags.view}));
    MR_TRY(ForEach(
        selection, {.stop = context.stop},
        [&](const std::string& path, const Error& error) {
          if (transfer::IsNoFile(error)) return;
          PrintError("millrace: ls /{}: {}\n", path, error.ToString());
        },
        [&](transfer::Item item) -> Status {
          PrintObject(context, flags, item.info, item.name, totals);
          return {};
        }));
  }
  if (flags.summarize) PrintListTotals(context, flags, totals);
  return kExitOk;
}

Result<int> DiskUsage(const Context& context, object::Connection& connection, const ListFlags& flags) {
  for (const std::string& text : flags.urls) {
    std::uint64_t bytes = 0, objects = 0;
    int unreadable = 0;
    ObjectPlace place = MR_TRY(OpenPlace(connection, text, flags.view));
    bool many = place.key.empty() || place.key.ends_with('/') || (!flags.raw && transfer::HasWildcard(place.key));
    if (!many) many = !MR_TRY(object::Head(*place.store, place.key, {.stop = context.stop}));
    Selection selection = MR_TRY(Select(
        connection, text, {.recursive = many, .raw = flags.raw, .bookkeeping = flags.bookkeeping, .view = flags.view}));
    MR_TRY(ForEach(
        selection, {.stop = context.stop},
        [&](const std::string& path, const Error& error) {
          if (transfer::IsNoFile(error)) return;
          ++unreadable;
          PrintError("millrace: du /{}: {}\n", path, error.ToString());
        },
        [&](transfer::Item item) -> Status {
          bytes += item.info.size;
          ++objects;
          return {};
        }));
    if (context.globals.json) {
      PrintJsonListing({{"url", place.Name()}, {"bytes", bytes}, {"objects", objects}});
    } else {
      PrintListing("{:>14} {:>10} objects  {}\n", flags.Size(bytes), FormatCount(objects), place.Name());
    }
    if (unreadable > 0) return kExitPartial;
  }
  return kExitOk;
}

/// Adds the details that only some objects have.
void AddDetails(const object::ObjectInfo& info, Json& json) {
  using Algorithm = object::Checksum::Algorithm;
  auto add = [&json](const char* name, const std::string& value) {
    if (!value.empty()) json[name] = value;
  };
  std::string digest = Base64Encode(AsBytes(info.checksum.value));
  if (info.checksum.parts > 0) digest += fmt::format("-{}", info.checksum.parts);
  add(info.checksum.algorithm == Algorithm::kCrc32c    ? "crc32c"
      : info.checksum.algorithm == Algorithm::kMd5     ? "md5"
      : info.checksum.algorithm == Algorithm::kSha256  ? "sha256"
      : info.checksum.algorithm == Algorithm::kGitBlob ? "git_blob"
                                                       : "crc64nvme",
      digest);
  if (!info.attributes) return;
  add("storage_class", info.attributes->storage_class);
  add("encryption", info.attributes->encryption);
  add("kms_key", info.attributes->kms_key);
  add("cache_control", info.attributes->cache_control);
  add("content_encoding", info.attributes->content_encoding);
  add("content_disposition", info.attributes->content_disposition);
  add("content_language", info.attributes->content_language);
  add("expires", info.attributes->expires);
  add("website_redirect", info.attributes->website_redirect);
  add("restore", info.attributes->restore);
  add("lock_mode", info.attributes->lock_mode);
  add("lock_until", info.attributes->lock_until);
  add("legal_hold", info.attributes->legal_hold);
}

Result<int> Head(const Context& context, object::Connection& connection, const ListFlags& flags) {
  for (const std::string& text : flags.urls) {
    ObjectPlace place = MR_TRY(OpenPlace(connection, text, flags.view));
    if (place.key.empty())
      return Fail(Code::kInvalidArgument, "{} names no object; add a key, as in s3://bucket/key", text);
    auto info = MR_TRY(object::Head(*place.store, place.key, {.stop = context.stop}));
    if (!info) return Fail(Code::kNotFound, "{} does not exist; check the name with `millrace ls`", place.Name());
    Json json = {{"key", info->key},
                 {"size", info->size},
                 {"etag", info->etag},
                 {"modified", FormatIso8601(info->modified)},
                 {"content_type", info->content_type},
                 {"metadata", Json::object()}};
    if (!info->version.empty()) json["version_id"] = info->version;
    for (const auto& [name, value] : info->metadata) json["metadata"][name] = value;
    AddDetails(*info, json);
    if (context.globals.json) {
      PrintJsonListing(json);
      continue;
    }
    PrintListing("{}\n", place.Name());
    for (const auto& [name, value] : json.items()) {
      if (name == "key") continue;
      PrintListing("  {:<13} {}\n", name, value.is_string() ? value.get<std::string>() : DumpJson(value));
    }
  }
  return kExitOk;
}

/// Flags of ls and du. -h is for sizes here, as in the tools of these names; --help is for help.
void AddSizeFlags(CLI::App& command, ListFlags& flags) {
  command.set_help_flag("--help", "Print this help message and exit");
  command.add_flag("-h,-H,--human-readable", flags.human, "Print sizes such as 1.5 GB");
  command.add_flag("-a,--all", flags.bookkeeping, "Include Millrace's own files, in folders named .millrace");
}

}  // namespace

void AddListCommands(CLI::App& app, Context& context) {
  auto add = [&](const char* name, const char* description, const char* examples, auto function) {
    auto flags = std::make_shared<ListFlags>();
    CLI::App* command = AddCommand(app, context, name, description, examples, [&context, flags, function] {
      return WithConnection(context,
                            [&](object::Connection& connection) { return function(context, connection, *flags); });
    });
    return std::pair(command, flags);
  };
  auto [ls, ls_flags] = add("ls", "List buckets, or objects and folders",
                            "  millrace ls                              # buckets\n"
                            "  millrace ls s3://bucket/data/\n"
                            "  millrace ls -r --json s3://bucket/ | jq .size\n"
                            "  millrace ls -rh --summarize 's3://bucket/logs/*.gz'\n",
                            List);
  ls->add_option("URL", ls_flags->urls, "s3://bucket/prefix, hf://OWNER/MODEL/ or a path (default: list the buckets)");
  ls->add_flag("-r,--recursive", ls_flags->recursive, "List all objects below");
  AddSizeFlags(*ls, *ls_flags);
  ls->add_flag("-l,--long", ls_flags->details, "Print ETags too");
  ls->add_flag("--summarize", ls_flags->summarize, "Print the number of objects and bytes at the end");
  ls->add_flag("--raw", ls_flags->raw, "Treat *, ? and [ as ordinary characters");
  auto* versions = ls->add_flag("--versions,--all-versions", ls_flags->all_versions,
                                "List every version of each object, and delete markers");
  ls_flags->view.AddTo(*ls, false);
  ls->get_option("--at")->excludes(versions);
  auto [du, du_flags] = add("du", "Add up the sizes of objects",
                            "  millrace du s3://bucket/data/\n  millrace du -h 's3://bucket/*.parquet'\n", DiskUsage);
  du->add_option("URL", du_flags->urls, "s3://bucket/prefix, hf://OWNER/MODEL/ or a path")->required();
  AddSizeFlags(*du, *du_flags);
  du->add_flag("--raw", du_flags->raw, "Treat *, ? and [ as ordinary characters");
  du_flags->view.AddTo(*du, false);
  auto [head, head_flags] =
      add("head", "Show an object's size, ETag, times and metadata", "  millrace head s3://bucket/model.bin\n", Head);
  head_flags->view.AddTo(*head, true);
  head->add_option("URL", head_flags->urls, "s3://bucket/key, hf://OWNER/MODEL/file or a path")->required();
}

}  // namespace millrace::cli
