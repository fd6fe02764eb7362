"""An environment with every kind of space, for the tests: its observation is the last action."""
import gymnasium, numpy as np
from gymnasium import spaces

everything = spaces.Dict({
    "pick": spaces.Discrete(3, start=1),
    "push": spaces.Box(np.array([[0, -1], [-2, -np.inf]]), np.array([[1, 1], [2, np.inf]]), dtype=np.float64),
    "same": spaces.Box(-1, 1, (2,), dtype=np.float32),
    "many": spaces.MultiDiscrete([2, 5]),
    "bits": spaces.MultiBinary(3),
    "pair": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (2,), dtype=np.uint8)]),
    "word": spaces.Text(4, min_length=1),
})

class Shapes(gymnasium.Env):
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 1}
    action_space = observation_space = everything

    def __init__(self, render_mode=None, start="abc"):
        self.render_mode, self.start = render_mode, start

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if options:
            raise ValueError(f"no such options: {options}")
        print("a library that prints", flush=True)
        everything.seed(seed)
        return everything.sample() | {"word": self.start}, {"array": np.arange(3), "odd": object, 5: np.float32(0.5)}

    def step(self, action):
        if action["word"] == "fail":
            raise RuntimeError("the motor is broken")
        if action["word"] == "nan":
            action = action | {"push": np.array([[0, np.nan], [np.inf, 1]])}
        reward = np.float32(np.nan if action["word"] == "void" else 0.5)
        return action, reward, action["word"] == "done", action["word"] == "cut", {}

    def render(self):
        return np.arange(36, dtype=np.uint8).reshape(3, 4, 3)

class Letters(Shapes):
    metadata = {"render_modes": ["ansi"]}

    def render(self):
        return "a picture of letters"

gymnasium.register("Letters-v0", entry_point=Letters, disable_env_checker=True)
gymnasium.register("Shapes-v0", entry_point=Shapes, disable_env_checker=True)
