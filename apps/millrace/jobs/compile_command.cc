#include "apps/millrace/jobs/compile_command.h"

#include "apps/common/output.h"
#include "millrace/base/text.h"
#include "millrace/train/compile/compile_cache.h"

namespace millrace::cli {
namespace {

using train::CompileCache;

/// A cache with the connection that it borrows.
struct OpenedCache {
  std::unique_ptr<object::Connection> connection;
  CompileCache cache;
};

Result<OpenedCache> OpenCache(const Context& context, const std::string& url) {
  auto connection = MR_TRY(context.Connect());
  auto cache = MR_TRY(CompileCache::Open(*connection, url.empty() ? MR_TRY(CompileCache::DefaultUrl()) : url));
  return OpenedCache{std::move(connection), std::move(cache)};
}

std::string Member(const Json& object, std::string_view section, std::string_view key) {
  const Json* found = JsonFind(object, section);
  return found == nullptr ? "?" : JsonString(*found, key).value_or("?");
}

std::string Number(const Json& object, std::string_view key) {
  const auto number = JsonInt(object, key);
  return number ? fmt::format("{}", *number) : "?";
}

Json ToJson(const CompileCache::Listed& listed) {
  Json json = {{"key", listed.key},
               {"size", listed.size},
               {"modified", FormatIso8601(listed.modified)},
               {"damaged", !listed.entry.has_value()}};
  if (listed.entry) {
    json["hash"] = listed.entry->Hash();
    json["choices"] = listed.entry->products.size();
    json["made_for"] = listed.entry->made_for;
  }
  return json;
}

void PrintText(const CompileCache::Listed& listed) {
  if (!listed.entry) {
    PrintListing("{:<12}  {}  damaged: {}\n", "-", FormatIso8601(listed.modified), listed.key);
    return;
  }
  const Json& made_for = listed.entry->made_for;
  PrintListing("{:<12}  {}  {} in {}, {} × {} tokens, {} threads of {}, torch {}: {} choices\n",
               listed.entry->Hash().substr(0, 12), FormatIso8601(listed.modified),
               Member(made_for, "model", "model_type"), JsonString(made_for, "precision").value_or("?"),
               Number(made_for, "micro_batch"), Number(made_for, "sequence_length"),
               JsonFind(made_for, "processor") == nullptr ? "?" : Number(*JsonFind(made_for, "processor"), "threads"),
               Member(made_for, "processor", "brand"), Member(made_for, "libraries", "torch"),
               listed.entry->products.size());
}

}  // namespace

Result<int> ListCompiled(const Context& context, const std::string& url) {
  OpenedCache opened = MR_TRY(OpenCache(context, url));
  for (const CompileCache::Listed& listed : MR_TRY(opened.cache.List({.stop = context.stop}))) {
    if (context.globals.json) {
      PrintJsonListing(ToJson(listed));
    } else {
      PrintText(listed);
    }
  }
  return kExitOk;
}

Result<int> PruneCompiled(const Context& context, const std::string& url, Duration age) {
  OpenedCache opened = MR_TRY(OpenCache(context, url));
  const WallTime oldest = SystemClock().Wall() - std::chrono::duration_cast<WallTime::duration>(age);
  for (const CompileCache::Listed& listed : MR_TRY(opened.cache.List({.stop = context.stop}))) {
    if (listed.entry && listed.modified >= oldest) continue;
    if (!context.globals.dry_run) MR_TRY(opened.cache.Remove(listed, {.stop = context.stop}));
    if (context.globals.json) {
      PrintJsonLine({{"event", "pruned"}, {"key", listed.key}, {"dry_run", context.globals.dry_run}});
    } else if (!context.globals.quiet) {
      Print("{} {}\n", context.globals.dry_run ? "would delete" : "deleted", listed.key);
    }
  }
  return kExitOk;
}

}  // namespace millrace::cli
