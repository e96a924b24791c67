"""``python -m aioproducer.config``: prints docs/configuration.md."""

from aioproducer.config.documentation import configuration_page

if __name__ == "__main__":
    print(configuration_page(), end="")
