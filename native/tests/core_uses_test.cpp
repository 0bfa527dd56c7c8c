// Which cores calls run on, as the pool and whoever else notes it.
#include "core_uses.hpp"

#include "check.hpp"
#include "pool.hpp"

namespace tierup::test {
namespace {

uint64_t all(const CoreUses& uses) {
  uint64_t sum = 0;
  for (size_t core = 0; core < CoreUses::kMost; ++core) sum += uses.of(core);
  return sum;
}

TEST(uses_are_counted_by_core) {
  CoreUses uses;
  uses.note(3);
  uses.note(3);
  uses.note(CoreUses::kMost - 1);
  CHECK(uses.of(3) == 2);
  CHECK(uses.of(CoreUses::kMost - 1) == 1);
  CHECK(all(uses) == 3);
}

TEST(cores_that_are_not_known_are_not_counted) {
  CoreUses uses;
  uses.note(-1);
  uses.note(CoreUses::kMost);
  CHECK(all(uses) == 0);
}

TEST(every_job_of_the_pool_is_a_use) {
  Pool workers(2);
  const uint64_t before = all(core_uses);
  for (int i = 0; i < 10; ++i) workers.parallel_for(64, 1, [](int64_t, int64_t, int) {});
  if (current_core() >= 0) CHECK(all(core_uses) >= before + 10);
  workers.shutdown();
}

}  // namespace
}  // namespace tierup::test
