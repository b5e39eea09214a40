// The contract of Store, one set of cases for both stores: RocksDB on a reactor, the simulated one
// in a world with shuffled scheduling. A case is a coroutine that gets an Opener and may open the
// store as often as it likes, one opening after the other.
#include <rapidcheck.h>
#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "lossy_file_system.h"
#include "metadata/rocksdb_store.h"
#include "metadata/simulated_store.h"
#include "runtime/sync.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"

namespace sandbay::metadata::testing {
namespace {

using sandbay::testing::run_in_world;
using sandbay::testing::run_on_reactor;
using sandbay::testing::ScratchDirectory;

enum class Kind { kRocksDb, kSimulated };

using Opened = std::expected<std::unique_ptr<Store>, std::string>;

// Opens the store under test, any number of times one after the other.
struct Opener {
  Kind kind;
  Executor& home;
  std::string path;
  rocksdb::Env* env = nullptr;  // RocksDB's files; null: the system's.

  Task<std::unique_ptr<Store>> open() const {
    Opened opened;
    if (kind == Kind::kRocksDb) {
      opened = co_await open_rocksdb_store(home, {.path = path, .env = env});
    } else {
      opened = co_await open_simulated_store(home, path);
    }
    if (!opened.has_value()) FAIL(opened.error());
    co_return std::move(*opened);
  }
};

using Body = Task<void> (*)(Opener opener, std::uint64_t seed);

void run(Kind kind, std::uint64_t seed, Body body) {
  if (kind == Kind::kSimulated) {
    run_in_world(seed, [&](Executor& home) { return body({kind, home, "metadata.log"}, seed); });
    return;
  }
  const ScratchDirectory scratch;
  // Only the first seed syncs: with every further one the test would wait for the disk alone.
  std::unique_ptr<rocksdb::Env> env;
  if (seed > 1) env = rocksdb::NewCompositeEnv(std::make_shared<LossyFileSystem>(seed));
  run_on_reactor(
      [&](Executor& home) { return body({kind, home, scratch.file("db"), env.get()}, seed); });
}

Task<std::string> value_of(Store& store, std::string key) {
  const auto got = co_await store.get(std::move(key));
  if (!got.has_value()) co_return "error: " + std::string(describe(got.error()));
  co_return got->value_or("nothing");
}

Task<std::string> keys_of(Store& store, std::string prefix, std::string after, std::size_t limit) {
  const auto listed = co_await store.list(std::move(prefix), std::move(after), limit);
  if (!listed.has_value()) co_return "error: " + std::string(describe(listed.error()));
  std::string keys;
  for (const Entry& entry : *listed) keys += (keys.empty() ? "" : " ") + entry.first;
  co_return keys;
}

Task<void> commit(Store& store, Batch batch) {
  const Error error = co_await store.commit(std::move(batch));
  CHECK(error == Error::kNone);
}

Task<void> gets_what_was_put(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  CHECK(&store->home() == &opener.home);
  std::string value = co_await value_of(*store, "a");
  CHECK(value == "nothing");
  const std::string odd("\0k\xff\x80", 4);
  Batch batch;
  batch.put("a", "1");
  batch.put("empty", "");
  batch.put(odd, odd);
  batch.put(std::string(kLongestKey, '\xff'), "longest");
  co_await commit(*store, std::move(batch));
  for (int opening = 0; opening < 2; ++opening) {
    value = co_await value_of(*store, "a");
    CHECK(value == "1");
    value = co_await value_of(*store, "empty");
    CHECK(value.empty());
    value = co_await value_of(*store, odd);
    CHECK(value == odd);
    value = co_await value_of(*store, std::string(kLongestKey, '\xff'));
    CHECK(value == "longest");
    co_await store->close();
    store = co_await opener.open();
  }
  Batch change;
  change.put("a", "2");
  change.erase("empty");
  change.erase("never there");
  co_await commit(*store, std::move(change));
  value = co_await value_of(*store, "a");
  CHECK(value == "2");
  value = co_await value_of(*store, "empty");
  CHECK(value == "nothing");
  co_await store->close();
}

Task<void> changes_apply_in_order(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  Batch batch;
  batch.put("v/1", "old");
  batch.put("v/2", "old");
  batch.put("w/1", "other");
  batch.erase_prefix("v/");
  batch.put("v/2", "new");
  batch.put("x", "1");
  batch.erase("x");
  batch.erase("y");
  batch.put("y", "1");
  batch.put("y", "2");
  co_await commit(*store, std::move(batch));
  std::string text = co_await keys_of(*store, "", "", 100);
  CHECK(text == "v/2 w/1 y");
  text = co_await value_of(*store, "v/2");
  CHECK(text == "new");
  text = co_await value_of(*store, "y");
  CHECK(text == "2");
  co_await commit(*store, Batch());  // Nothing to do is no error.
  co_await store->close();
}

Task<void> lists_in_key_order(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  Batch batch;
  for (const char* key : {"b/2", "a", "b/10", "b/1", "b0", "b", "c/1", "b/"}) batch.put(key, key);
  co_await commit(*store, std::move(batch));
  std::string keys = co_await keys_of(*store, "", "", 100);
  CHECK(keys == "a b b/ b/1 b/10 b/2 b0 c/1");
  keys = co_await keys_of(*store, "b/", "", 100);
  CHECK(keys == "b/ b/1 b/10 b/2");
  keys = co_await keys_of(*store, "b/", "", 2);
  CHECK(keys == "b/ b/1");
  keys = co_await keys_of(*store, "b/", "b/1", 100);
  CHECK(keys == "b/10 b/2");
  keys = co_await keys_of(*store, "b/", "b/11", 1);  // Need not be there.
  CHECK(keys == "b/2");
  keys = co_await keys_of(*store, "b/", "a", 1);  // Before the prefix.
  CHECK(keys == "b/");
  keys = co_await keys_of(*store, "b/", "b/2", 100);
  CHECK(keys.empty());
  keys = co_await keys_of(*store, "b/", "z", 100);
  CHECK(keys.empty());
  keys = co_await keys_of(*store, "nothing/", "", 100);
  CHECK(keys.empty());
  co_await store->close();
}

Task<void> prefixes_of_high_bytes(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  const std::string high(3, '\xff');
  Batch batch;
  batch.put("a", "");
  batch.put("a\xff", "");
  batch.put("a\xff\xff", "");
  batch.put("b", "");
  batch.put(high, "");
  batch.put(high + "x", "");
  batch.put(std::string(kLongestKey, '\xff'), "");
  co_await commit(*store, std::move(batch));
  std::string keys = co_await keys_of(*store, "a\xff", "", 100);
  CHECK(keys == "a\xff a\xff\xff");
  Batch erase;
  erase.erase_prefix("a\xff");
  erase.erase_prefix(high + "x");
  co_await commit(*store, std::move(erase));
  keys = co_await keys_of(*store, "", "", 3);
  CHECK(keys == "a b " + high);
  Batch erase_high;
  erase_high.erase_prefix("\xff");
  co_await commit(*store, std::move(erase_high));
  keys = co_await keys_of(*store, "", "", 100);
  CHECK(keys == "a b");
  Batch erase_all;
  erase_all.erase_prefix("");
  co_await commit(*store, std::move(erase_all));
  keys = co_await keys_of(*store, "", "", 100);
  CHECK(keys.empty());
  co_await store->close();
}

Task<void> count_up(Store& store, int number, std::vector<int>& ended) {
  Batch batch;
  batch.put("counter", std::to_string(number));
  batch.put("n/" + std::to_string(number), std::string(1000, 'x'));
  const Error error = co_await store.commit(std::move(batch));
  CHECK(error == Error::kNone);
  ended.push_back(number);
}

Task<void> many_at_once(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  std::vector<int> ended;
  for (int number = 1; number <= 200; ++number) spawn(count_up(*store, number, ended));
  // Asked for after all of them, so it sees all of them.
  std::string value = co_await value_of(*store, "counter");
  CHECK(value == "200");
  spawn(count_up(*store, 201, ended));
  const auto listed = co_await store->list("n/", "", 1000);
  CHECK((listed.has_value() && listed->size() == 201));
  co_await store->close();
  CHECK(ended.size() == 201);
  store = co_await opener.open();
  value = co_await value_of(*store, "counter");
  CHECK(value == "201");
  co_await store->close();
}

Task<void> closes(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  std::vector<int> ended;
  for (int number = 1; number <= 20; ++number) spawn(count_up(*store, number, ended));
  co_await store->close();
  CHECK(ended.size() == 20);  // It waited.
  const auto got = co_await store->get("counter");
  CHECK((!got.has_value() && got.error() == Error::kClosed));
  const auto listed = co_await store->list("", "", 1);
  CHECK((!listed.has_value() && listed.error() == Error::kClosed));
  Batch batch;
  batch.put("a", "b");
  const Error error = co_await store->commit(std::move(batch));
  CHECK(error == Error::kClosed);
  co_await store->close();  // Again is harmless.
}

Task<void> large_values(Opener opener, std::uint64_t) {
  auto store = co_await opener.open();
  for (char letter = 'a'; letter < 'd'; ++letter) {  // More than RocksDB's logs may hold.
    Batch batch;
    batch.put(std::string("1") + letter, std::string(kLongestValue, letter));
    batch.put(std::string("2") + letter, std::string(kLongestValue - 1, letter));
    co_await commit(*store, std::move(batch));
  }
  co_await store->close();
  store = co_await opener.open();
  const auto listed = co_await store->list("", "", 100);
  CHECK((listed.has_value() && listed->size() == 6));
  for (std::size_t i = 0; i < listed->size(); ++i) {
    const auto& [key, value] = (*listed)[i];
    const bool same = value == std::string(kLongestValue - (key[0] == '2' ? 1 : 0), key[1]);
    CHECK(same);
  }
  co_await store->close();
}

// A random history against a map. Keys come from a small set with shared prefixes.
std::string random_key(Random& random) {
  static constexpr char kLetters[] = {'a', 'b', '\0', '\xff', '/', '\xfe'};
  std::string key(random.between(1, 4), 'a');
  for (char& letter : key) letter = kLetters[random.below(sizeof kLetters)];
  return key;
}

using Model = std::map<std::string, std::string>;

void erase_prefix(Model& model, const std::string& prefix) {
  std::erase_if(model, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

std::vector<Entry> list_model(const Model& model, const std::string& prefix,
                              const std::string& after, std::size_t limit) {
  std::vector<Entry> found;
  for (const auto& entry : model) {
    if (entry.first.starts_with(prefix) && entry.first > after && found.size() < limit) {
      found.emplace_back(entry);
    }
  }
  return found;
}

Batch random_batch(Model& model, Random& random) {
  Batch batch;
  for (std::uint64_t count = random.between(1, 8); count > 0; --count) {
    std::string key = random_key(random);
    const std::uint64_t choice = random.below(10);
    if (choice < 6) {
      std::string value(random.below(300), static_cast<char>(random.next()));
      model[key] = value;
      batch.put(std::move(key), std::move(value));
    } else if (choice < 9) {
      model.erase(key);
      batch.erase(std::move(key));
    } else {
      key.resize(random.below(key.size() + 1));
      erase_prefix(model, key);
      batch.erase_prefix(std::move(key));
    }
  }
  return batch;
}

Task<void> like_a_map(Opener opener, std::uint64_t seed) {
  Random random(seed);
  Model model;
  auto store = co_await opener.open();
  for (int step = 0; step < 150; ++step) {
    const std::uint64_t choice = random.below(20);
    if (choice < 9) {
      co_await commit(*store, random_batch(model, random));
    } else if (choice < 13) {
      const std::string key = random_key(random);
      const auto got = co_await store->get(key);
      const auto expected = model.find(key);
      CHECK(got.has_value());
      CHECK(got->has_value() == (expected != model.end()));
      if (got->has_value() && expected != model.end()) CHECK(**got == expected->second);
    } else if (choice < 19) {
      std::string prefix = random_key(random);
      prefix.resize(random.below(prefix.size() + 1));
      const std::string after = random.chance(0.5) ? random_key(random) : "";
      const std::size_t limit = random.between(1, 20);
      const auto listed = co_await store->list(prefix, after, limit);
      CHECK(listed.has_value());
      const bool same = *listed == list_model(model, prefix, after, limit);
      CHECK(same);
    } else {
      co_await store->close();
      store = co_await opener.open();
    }
  }
  const auto all = co_await store->list("", "", 100000);
  const bool same = all.has_value() && *all == std::vector<Entry>(model.begin(), model.end());
  CHECK(same);
  co_await store->close();
}

}  // namespace

TEST_CASE("The end of a prefix is beyond every key that begins with it", "[metadata]") {
  CHECK(end_of_prefix("a") == "b");
  CHECK(end_of_prefix("a\xff") == "b");
  CHECK(end_of_prefix("") == std::string(kLongestKey + 1, '\xff'));
  REQUIRE(rc::check("prefixes and keys", [](const std::string& prefix, const std::string& rest) {
    const std::string end = end_of_prefix(prefix);
    RC_ASSERT(prefix + rest < end);
    // And it is the least such string, but for runs of 0xff.
    if (end.size() <= prefix.size()) RC_ASSERT(!end.starts_with(prefix));
  }));
}

TEST_CASE("A store gets what was put", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, gets_what_was_put);
}

TEST_CASE("Changes of a batch apply in order", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, changes_apply_in_order);
}

TEST_CASE("A store lists by prefix in key order", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, lists_in_key_order);
}

TEST_CASE("Prefixes of high bytes have an end", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, prefixes_of_high_bytes);
}

TEST_CASE("Many commits at once keep their order", "[metadata]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 5));
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), seed, many_at_once);
}

TEST_CASE("Closing waits, and a closed store refuses", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, closes);
}

TEST_CASE("Large values come back", "[metadata]") {
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), 1, large_values);
}

TEST_CASE("A store is like a map", "[metadata]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 17));
  CAPTURE(seed);
  run(GENERATE(Kind::kRocksDb, Kind::kSimulated), seed, like_a_map);
}

}  // namespace sandbay::metadata::testing
