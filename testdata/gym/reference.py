"""CartPole-v1 in this process, for the tests: the values that gym_env.py must return, and the time of a step without it.

usage: reference.py run STEPS     one JSON line per reset and step
       reference.py time STEPS    the seconds that the steps took
"""
import json, random, sys, time
import gymnasium

env, steps, chance = gymnasium.make("CartPole-v1"), int(sys.argv[2]), random.Random(5)

def show(**line):
    print(json.dumps(line, separators=(",", ":")))

if sys.argv[1] == "time":
    begun, seed = time.perf_counter(), 0
    env.reset(seed=seed)
    for i in range(steps):
        _, _, done, truncated, _ = env.step(i // 2 % 2)
        if done or truncated:
            seed += 1
            env.reset(seed=seed)
    print(time.perf_counter() - begun)
    sys.exit()
seed, over = -1, True
for _ in range(steps):
    if over:
        seed += 1
        seen, _ = env.reset(seed=seed)
        show(seed=seed, observation=seen.tolist())
    action = chance.randrange(2)
    seen, reward, done, truncated, _ = env.step(action)
    over = done or truncated
    show(action=action, observation=seen.tolist(), reward=reward, done=done, truncated=truncated)
